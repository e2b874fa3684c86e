// Answers the page's requests with the engine in a worker. The page is that of `edgedec serve`; this file replaces its
// server. Requests go to the page's own folder only.
import { open } from "./edgedec/client.js";

const network = window.fetch.bind(window), utf8 = new TextEncoder();
const FINISH = { eos: "stop", stop: "stop", stopped: "stop", length: "length", context: "length" };
let opened = null;

/** @param {string} words */
function say(words) { document.getElementById("speed").textContent = words; }

/** Makes the page cross-origin isolated, which threads need. If its server does not send the headers, the service
 * worker adds them; at the first visit the page is therefore reloaded once. */
async function isolate() {
  const workers = navigator.serviceWorker, tried = "edgedec-isolated";
  if (window.crossOriginIsolated || !workers || sessionStorage.getItem(tried)) return;
  sessionStorage.setItem(tried, "yes");
  say("preparing");
  const ready = await Promise.race([
    workers.register("sw.js").then(() => workers.ready).catch(() => null),
    new Promise(done => setTimeout(() => done(null), 15000)),
  ]);
  if (!ready) return;
  location.reload();
  await new Promise(() => {});
}

/** The site's facts, the model, and the session of the conversation. */
async function load() {
  await isolate().catch(() => {});  // without it there is one thread
  const site = await (await network("site.json")).json();
  const onProgress = (done, total) => say(done < total ? `loading ${Math.floor(100 * done / total)}%` : "opening");
  const options = { onProgress, base: new URL("edgedec/", location.href).href, threads: site.threads, ...(site.kv && { kv: site.kv }) };
  const model = await open(new URL(site.bundle, location.href), options);
  const session = await model.session({ speculate: site.spec, draft: site.draft });
  say("");
  Object.assign(document.documentElement.dataset, { isa: model.isa, threads: model.threads });
  navigator.serviceWorker?.register("sw.js").catch(() => {});  // without one the page needs its server again
  return { site, model, session };
}
function engine() {
  opened ??= load().catch(error => { opened = null; throw error; });
  return opened;
}

/** The messages as the model's template writes them, by the site's table of the texts between roles.
 * @param {Record<string, string>} chat @param {{role: string, content: string}[]} messages */
function rendered(chat, messages) {
  let text = "", before = "";
  for (const { role, content } of messages) {
    const between = chat[`${before}>${role}`];
    if (between === undefined) throw new Error(`the model's chat template has no ${role} after ${before || "the beginning"}`);
    text += between + (chat.trim.split(" ").includes(role) ? content.trim() : content);
    before = role;
  }
  const end = chat[`${before}>`];
  if (end === undefined) throw new Error(`the model's chat template does not end with ${before || "nothing"}`);
  return text + end;
}

/** A stream of server-sent events. @param {AsyncIterable<object>} chunks @param {AbortSignal} [signal] */
function events(chunks, signal) {
  const all = chunks[Symbol.asyncIterator]();
  return new Response(new ReadableStream({
    start(stream) {
      signal?.addEventListener("abort", () => {
        stream.error(signal.reason);
        all.return?.(undefined);
      }, { once: true });
    },
    async pull(stream) {
      let last = true, data = "[DONE]";
      try {
        const { value, done } = await all.next();
        if (!done) last = false, data = JSON.stringify(value);
      } catch (error) { data = JSON.stringify({ error: { message: error.message } }); }
      if (signal?.aborted) return;
      stream.enqueue(utf8.encode(`data: ${data}\n\n`));
      if (last) stream.close();
    },
    async cancel() { await all.return?.(); },
  }), { headers: { "Content-Type": "text/event-stream" } });
}

/** One answer, as the server sends it. */
async function* answer({ site, model, session }, body, signal) {
  const ids = await model.encode(rendered(site.chat, body.messages), { around: false });
  const began = performance.now(), sampling = { ...site.sampling };
  if (body.temperature !== undefined) sampling.temperature = body.temperature;
  const options = { ...sampling, ...(body.seed !== undefined && { seed: body.seed }), maxTokens: body.max_tokens ?? -1, signal };
  let n = 0, first = 0;
  for await (const token of session.generate(ids, options)) {
    first ||= performance.now();
    if (token.id >= 0) n++;
    yield { choices: [{ delta: { content: token.text }, edgedec: { by: token.drafted ? "drafts" : "" } }] };
  }
  const { result } = session, seconds = (performance.now() - first) / 1000;
  yield { choices: [{ delta: {}, finish_reason: FINISH[result.finish] ?? "stop" }],
    usage: { completion_tokens: result.generated, total_tokens: result.prompt + result.generated },
    edgedec: { tokens_per_second: n > 1 && seconds > 0 ? (n - 1) / seconds : undefined, tokens_per_call: (n + (result.finish === "eos")) / Math.max(1, result.calls),
      prompt_seconds: (first - began) / 1000 } };
}

let last = Promise.resolve();
/** One answer at a time: a stopped answer has to end before the next one begins. */
async function* inTurn(body, signal) {
  const before = last;
  let end = () => {};
  last = new Promise(done => { end = () => done(undefined); });
  await before;
  try {
    if (!signal?.aborted) yield* answer(await engine(), body, signal);
  } finally { end(); }
}

/** @param {number} status @param {string} message */
const refusal = (status, message) => new Response(JSON.stringify({ error: { message } }), { status });

window.fetch = async (path, { body, signal } = {}) => {
  try {
    const { site, model } = await engine();
    if (path === "v1/models") return Response.json({ data: [{ id: site.name, edgedec: { context_length: model.contextLength } }] });
    if (path === "v1/chat/completions") return events(inTurn(JSON.parse(body), signal), signal);
    return refusal(404, `${path}: not in this page`);
  } catch (error) {
    say("");
    return refusal(error.code === "usage" ? 400 : 500, error.message);
  }
};
