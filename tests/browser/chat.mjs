// The chat page's script in node: jsdom has its elements, node fetches. Prints what was seen, as JSON.
//     node chat.mjs URL ACT
import { JSDOM, VirtualConsole } from "jsdom";

const [url, act] = process.argv.slice(2);
const complaints = [];

/** The page as it is served, its script run; `kept`: what an earlier page left in the tab's storage. */
async function open(kept = {}) {
  const virtualConsole = new VirtualConsole();
  virtualConsole.on("jsdomError", error => complaints.push(error.message));
  const html = await (await fetch(url)).text();
  const page = new JSDOM(html, {
    url, virtualConsole, runScripts: "dangerously", pretendToBeVisual: true,
    beforeParse(window) {
      for (const [name, value] of Object.entries(kept)) window.sessionStorage.setItem(name, value);
      Object.assign(window, { AbortController, TextDecoder, scrollTo() {} });
      Object.defineProperty(window.Document.prototype, "scrollingElement", { get() { return this.documentElement; } });
      window.fetch = (path, how) => fetch(new URL(path, url), how);
      Object.assign(window.HTMLDialogElement.prototype, {
        showModal() { this.open = true; },
        close() { this.open = false; },
      });
    },
  });
  const { window } = page, { document } = window;
  await until(() => document.title !== "edgedec" || !document.getElementById("notice").hidden);
  return { window, document, $: id => document.getElementById(id) };
}
async function until(so) {
  for (let i = 0; i < 1500; i++) {
    if (so()) return;
    await new Promise(done => setTimeout(done, 20));
  }
  throw new Error(`never came: ${so}`);
}
const idle = page => until(() => page.window.eval("running === null"));
function type(page, text) {
  page.$("text").value = text;
  page.$("text").dispatchEvent(new page.window.Event("input"));
  page.$("text").dispatchEvent(new page.window.KeyboardEvent("keydown", { key: "Enter", cancelable: true }));
}
function seen({ window, document, $ }) {
  const texts = selector => [...document.querySelectorAll(selector)].map(node => node.textContent);
  return {
    title: document.title, users: texts(".user .body"), answers: texts(".answer .body"), figures: texts(".answer .meta"),
    markup: document.querySelectorAll("#log img, #log script").length, marks: texts("#log .by").length,
    counts: [...document.querySelectorAll("#legend > span")].map(e => [...e.children].map(c => c.textContent)),
    notice: $("notice").hidden ? "" : $("notice").textContent, openings: texts("#openings button"),
    asks: $("ask").open, kept: window.sessionStorage.getItem("edgedec-talk"), complaints,
  };
}
function plain(page) {
  page.window.eval("set({ temperature: 0, max_tokens: 40 })");
}

const ACTS = {
  async talk() {
    const page = await open();
    plain(page);
    for (const text of ["One day, a fox", "<img src=x onerror=alert(1)><script>x</script>"]) {
      type(page, text);
      await idle(page);
    }
    const first = seen(page);
    const again = await open({ "edgedec-talk": first.kept });
    return { ...first, again: seen(again) };
  },
  async openings() {
    const page = await open(), before = seen(page);
    plain(page);
    page.document.querySelector("#openings button").click();
    await idle(page);
    return { ...seen(page), before: before.openings };
  },
  async stop() {
    const page = await open();
    type(page, "Tell me about a cat named Tom");
    await until(() => page.document.querySelector(".live .body")?.textContent.length > 0);
    page.$("go").click();
    await idle(page);
    return seen(page);
  },
  async damaged() {  // storage that is anybody's
    const page = await open({ "edgedec-talk": '[{"role": "system", "text": 7}, null, {"role": "user", "text": "kept"}]' });
    return seen(page);
  },
  async locked() {  // a server that wants a key
    const page = await open(), before = seen(page);
    page.document.querySelector("#ask input").value = "secret";
    page.document.querySelector("#ask form").dispatchEvent(new page.window.Event("submit", { bubbles: true, cancelable: true }));
    await until(() => page.document.title !== "edgedec");
    plain(page);
    type(page, "One day, a fox");
    await idle(page);
    return { ...seen(page), before };
  },
};
console.log(JSON.stringify(await ACTS[act]()));
process.exit(0);
