// The JavaScript library for tests: a line of JSON in, a line of JSON out.
//     node drive.mjs FOLDER-OF-THE-LIBRARY
import { createHash } from "node:crypto";
import { readFileSync, readdirSync } from "node:fs";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const { open, together, EdgedecError } = await import(pathToFileURL(`${process.argv[2]}/edgedec.js`));
const models = new Map();

async function model({ bundle, ...options }) {
  const key = JSON.stringify([bundle, options]);
  if (!models.has(key)) models.set(key, await open(bundle, options));
  return models.get(key);
}
/** -Infinity and null are no JSON. */
function options(given) {
  const made = { ...given, seed: given.seed === undefined ? undefined : BigInt(given.seed) };
  if (given.logitBias) made.logitBias = Object.fromEntries(Object.entries(given.logitBias).map(([t, b]) => [t, b === null ? -Infinity : b]));
  return made;
}
async function generated(session, prompt, given, take = Infinity) {
  const tokens = [];
  for await (const token of session.generate(prompt, options(given))) {
    tokens.push(token);
    if (tokens.length >= take) break;
  }
  return tokens;
}
const told = (session, tokens) => ({ ids: tokens.map(token => token.id).filter(id => id >= 0), text: tokens.map(token => token.text).join(""),
  finish: session.result.finish, drafted: tokens.filter(token => token.drafted).length, result: session.result, cached: session.cached,
  all: session.ids });

/** The time that each thread of this process has worked, in the system's ticks. */
function ticks() {
  const found = {};
  for (const id of readdirSync("/proc/self/task"))
    found[id] = Number(readFileSync(`/proc/self/task/${id}/stat`, "utf8").split(") ")[1].split(" ")[11]);
  return found;
}

const ACTS = {
  async about(given) {
    const opened = await model(given.model);
    return { ...opened, memory: opened.memory, strings: ["name", "isa", "kv", "digest", "chatTemplate"].map(name => opened[name]) };
  },
  async golden({ model: which, prompt, n }) {
    const session = (await model(which)).session({ speculate: "off" }), hash = createHash("sha256");
    const ids = session.model.encode(prompt);
    ids.forEach((id, i) => {
      if (i) session.step(id); else session.prefill([id]);
      hash.update(Buffer.from(session.logits().buffer));
    });
    const tokens = await generated(session.model.session(), ids, { maxTokens: n });
    hash.update(Buffer.from(new Int32Array(tokens.map(token => token.id)).buffer));
    return hash.digest("hex");
  },
  async generate({ model: which, session, prompt, options: given, take }) {
    const made = (await model(which)).session(session);
    try {
      return told(made, await generated(made, prompt, given, take));
    } finally { made.free(); }
  },
  async saved({ model: which, session, prompt, options: given }) {
    const made = (await model(which)).session(session);
    await generated(made, prompt, given);
    return Buffer.from(made.save()).toString("base64");
  },
  async loaded({ model: which, session, saved, options: given }) {
    const made = (await model(which)).session(session);
    made.load(Buffer.from(saved, "base64"));
    const fork = made.fork(), first = told(made, await generated(made, null, given));
    return [first, told(fork, await generated(fork, null, given))];
  },
  /** A request of the golden file of C and Kotlin, and what follows it. */
  async replay({ model: which, request: { ids, drafts, then, options: given } }) {
    const opened = await model(which), session = opened.session({ speculate: drafts });
    const first = told(session, await generated(session, ids, { ...given, maxTokens: 16 }));
    const other = then === "fork" ? session.fork() : then === "saved" ? opened.session({ speculate: drafts }) : session;
    if (then === "saved") other.load(session.save());
    const text = then === "cut" ? session.ids.slice(0, -3) : null;
    const more = told(other, await generated(other, text, { ...given, seed: undefined, maxTokens: 10 }));
    for (const each of new Set([session, other])) each.free();
    return { tokens: first.ids, more: more.ids, accepted: first.result.accepted };
  },
  async together({ model: which, session, requests }) {
    const opened = await model(which), found = requests.map(() => []);
    const all = requests.map(({ prompt, options: given }) => ({ session: opened.session(session), prompt, options: options(given) }));
    for await (const { index, token } of together(all)) found[index].push(token);
    return found.map((tokens, i) => told(all[i].session, tokens));
  },
  async aborted({ model: which, prompt }) {
    const session = (await model(which)).session(), controller = new AbortController();
    setTimeout(() => controller.abort(), 60);
    let n = 0;
    try {
      for await (const _ of session.generate(prompt, { maxTokens: 900, ignoreEos: true, signal: controller.signal })) n++;
    } catch (error) { return { n, code: error.code, length: session.ids.length }; }
    return { n, code: "" };
  },
  async busy({ model: which, prompt }) {
    const session = (await model(which)).session(), codes = [];
    for await (const _ of session.generate(prompt, { maxTokens: 3 })) {
      for (const act of [() => session.free(), () => session.step(1), () => session.save()])
        try { act(); codes.push(""); } catch (error) { codes.push(error.code); }
      break;
    }
    session.free();
    try { session.ids; } catch (error) { codes.push(error.code); }
    return codes;
  },
  async text({ model: which, texts }) {
    const opened = await model(which);
    return texts.map(text => { const ids = opened.encode(text); return [ids, opened.decode(ids)]; });
  },
  async score({ model: which, prompt, ids }) {
    const session = (await model(which)).session();
    session.prefill(prompt);
    return session.score(ids);
  },
  async adapted({ model: which, adapter: path, session, prompt, options: given }) {
    const opened = await model(which), adapter = await opened.adapter(path);
    const made = opened.session({ ...session, adapter });
    adapter.free();  // the session keeps what it needs
    return told(made, await generated(made, prompt, given));
  },
  async worked({ model: which, prompt, times }) {
    const opened = await model(which), before = ticks();
    for (let i = 0; i < times; i++) {
      const session = opened.session({ speculate: "off" });
      session.prefill(prompt);
      session.free();
    }
    const after = ticks();
    return { threads: opened.threads, worked: Object.keys(after).filter(id => after[id] - (before[id] ?? 0) > 2).length };
  },
  async closed({ model: which, prompt }) {
    const { bundle, ...more } = which, opened = await open(bundle, more), session = opened.session();
    session.prefill(prompt);
    opened.close();
    try { session.ids; } catch (error) { return error.code; }
  },
  async progress({ url, piece }) {
    const seen = [];
    const opened = await open(url, { piece, onProgress: (done, total) => seen.push([done, total]) });
    return { seen, name: opened.name };
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { act, ...given } = JSON.parse(line);
  let answer;
  try {
    answer = { value: await ACTS[act](given) };
  } catch (error) {
    answer = error instanceof EdgedecError ? { code: error.code, message: error.message } : { code: "bug", message: String(error.stack) };
  }
  process.stdout.write(JSON.stringify(answer, (_, value) => typeof value === "bigint" ? Number(value) : value) + "\n");
}
