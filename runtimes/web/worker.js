// The engine in a worker, so that the page stays free. client.js is the other side.
import { EdgedecError, forget, open } from "./edgedec.js";

const sessions = /** @type {Map<number, import("./edgedec.js").Session>} */ (new Map());
const adapters = /** @type {Map<number, import("./edgedec.js").Adapter>} */ (new Map());
const running = /** @type {Map<number, AbortController>} */ (new Map());
let model = /** @type {import("./edgedec.js").Model | null} */ (null);
let numbers = 0;

/** @param {any} what @param {Transferable[]} [moved] */
const post = (what, moved = []) => /** @type {any} */ (globalThis).postMessage(what, moved);

/** @param {import("./edgedec.js").Session} session */
function kept(session) {
  sessions.set(++numbers, session);
  return numbers;
}
/** @param {number} number */
function session(number) {
  const found = sessions.get(number);
  if (!found) throw new Error("the session was freed");
  return found;
}
/** @param {number | undefined} number none: a session without an adapter */
function adapterOf(number) {
  const found = number === undefined ? undefined : adapters.get(number);
  if (number !== undefined && !found) throw new EdgedecError("the adapter was freed", "usage");
  return found;
}
/** Calls of a session that need nothing but its number and arguments. */
const CALLS = ["free", "save", "load", "truncate", "seed", "append", "prefill", "step", "logits", "score"];

/** Reports of loading, a few a second. @param {number} id */
function reporting(id) {
  let last = 0;
  return (/** @type {number} */ done, /** @type {number} */ total) => {
    if (done < total && performance.now() - last < 50) return;
    last = performance.now();
    post({ id, progress: [done, total] });
  };
}
function opened() {
  if (!model) throw new Error("no bundle is open");
  return model;
}

const ACTS = /** @type {Record<string, (given: any, id: number) => any>} */ ({
  async open({ source, options }, id) {
    model = await open(source, { ...options, onProgress: reporting(id) });
    return Object.fromEntries(Object.entries(model).filter(([name]) => !name.startsWith("_")));
  },
  session: ({ options: { adapter, ...options } = /** @type {any} */ ({}) }) => kept(opened().session({ ...options, adapter: adapterOf(adapter) })),
  async adapter({ source, options }, id) {
    adapters.set(++numbers, await opened().adapter(source, { ...options, onProgress: reporting(id) }));
    return numbers;
  },
  drop({ number }) {
    adapters.get(number)?.free();
    adapters.delete(number);
  },
  fork: ({ number }) => kept(session(number).fork()),
  call({ number, name, given }) {
    if (!CALLS.includes(name)) throw new Error(`no call ${name} of a session`);
    const found = /** @type {any} */ (session(number))[name](...given);
    if (name === "free") sessions.delete(number);
    return found;
  },
  async generate({ number, prompt, options }, id) {
    const from = session(number), controller = new AbortController();
    running.set(id, controller);
    let tokens = /** @type {any[]} */ ([]), last = performance.now();
    const flush = () => {
      if (tokens.length) post({ id, tokens });
      tokens = [];
      last = performance.now();
    };
    try {
      for await (const token of from.generate(prompt, options)) {
        tokens.push(token);
        if (performance.now() - last > 15) flush();
        if (controller.signal.aborted) break;
      }
    } finally {
      running.delete(id);
      flush();
    }
    return from.result;
  },
  cancel: ({ which }) => running.get(which)?.abort(),
  ids: ({ number }) => session(number).ids,
  cached: ({ number }) => session(number).cached,
  encode: ({ text, options }) => opened().encode(text, options),
  decode: ({ ids, options }) => opened().decode(ids, options),
  memory: () => opened().memory,
  forget: ({ source }) => forget(source),
});

addEventListener("message", async ({ data: { id, act, ...given } }) => {
  try {
    post({ id, value: await ACTS[act](given, id) });
  } catch (error) {
    const { message, code = "unavailable" } = /** @type {any} */ (error);
    post({ id, error: { message, code } });
  }
});
