// The library with the engine in a worker: the same calls, each of which is awaited.
//
//     import { open } from "edgedec/worker";
//     const model = await open("nano.edb"), session = await model.session();
//     for await (const token of session.generate("Once upon a time")) write(token.text);
import { EdgedecError } from "./memory.js";

export { EdgedecError };

/** @typedef {{done: (value: any) => void, failed: (error: Error) => void, tokens?: (tokens: any[]) => void,
 *   progress?: (done: number, total: number) => void}} Waiting */

/** Messages to a worker and their answers. */
class Channel {
  /** @param {Worker} worker */
  constructor(worker) {
    this.worker = worker;
    this.waiting = /** @type {Map<number, Waiting>} */ (new Map());
    this.number = 0;
    worker.onmessage = ({ data }) => this.take(data);
    worker.onerror = event => this.close(`the worker failed: ${event.message || "it could not be loaded"}`);
  }
  /** @param {any} message */
  take({ id, value, error, tokens, progress }) {
    const waits = this.waiting.get(id);
    if (!waits) return;
    if (tokens) return waits.tokens?.(tokens);
    if (progress) return waits.progress?.(progress[0], progress[1]);
    this.waiting.delete(id);
    if (error) waits.failed(new EdgedecError(error.message, error.code));
    else waits.done(value);
  }
  /** @param {string} act @param {object} given @param {Partial<Waiting>} [more] */
  send(act, given = {}, more = {}) {
    const id = ++this.number;
    const answer = new Promise((done, failed) => this.waiting.set(id, { done, failed, ...more }));
    this.worker.postMessage({ id, act, ...given });
    return { id, answer };
  }
  /** @param {string} act @param {object} [given] @returns {Promise<any>} */
  ask(act, given) { return this.send(act, given).answer; }
  /** @param {string} why */
  close(why) {
    this.worker.terminate();
    for (const { failed } of this.waiting.values()) failed(new EdgedecError(why, "unavailable"));
    this.waiting.clear();
  }
}

/** Opens a bundle in a worker of its own. Options are those of edgedec.js, and `worker`: one that runs worker.js.
 * @param {string | URL | ArrayBuffer | Uint8Array} source @param {any} [options] */
export async function open(source, { onProgress, worker, ...options } = {}) {
  const made = worker ?? new Worker(new URL("./worker.js", import.meta.url), { type: "module", name: "edgedec" });
  const channel = new Channel(made);
  try {
    return new RemoteModel(channel, await channel.send("open", { source: absolute(source), options }, { progress: onProgress }).answer);
  } catch (error) {
    channel.close("closed");
    throw error;
  }
}

/** The source as an absolute URL: a worker has another base address.
 * @param {string | URL | ArrayBuffer | Uint8Array} source */
function absolute(source) {
  return typeof source === "string" || source instanceof URL ? new URL(source, globalThis.location?.href).href : source;
}

/** An open bundle in a worker. */
export class RemoteModel {
  /** @param {Channel} channel @param {Record<string, any>} facts */
  constructor(channel, facts) {
    this._channel = channel;
    Object.assign(this, facts);
  }
  /** @param {any} [options] */
  async session({ adapter, ...options } = {}) {
    if (adapter && adapter._channel !== this._channel) throw new EdgedecError("adapter: of another model", "usage");
    const given = { ...options, ...(adapter && { adapter: adapter._number }) };
    return new RemoteSession(this._channel, await this._channel.ask("session", { options: given }));
  }
  /** A LoRA adapter for this model. @param {string | URL | ArrayBuffer | Uint8Array} source @param {any} [options] */
  async adapter(source, { onProgress, ...options } = {}) {
    return new RemoteAdapter(this._channel, await this._channel.send("adapter", { source: absolute(source), options }, { progress: onProgress }).answer);
  }
  /** @param {string} text @param {object} [options] */
  encode(text, options) { return this._channel.ask("encode", { text, options }); }
  /** @param {number[]} ids @param {object} [options] */
  decode(ids, options) { return this._channel.ask("decode", { ids, options }); }
  memory() { return this._channel.ask("memory"); }
  /** Ends the worker and frees its memory. */
  close() { this._channel.close("the model was closed"); }
}

/** What an adapter adds, in a worker. */
export class RemoteAdapter {
  /** @param {Channel} channel @param {number} number */
  constructor(channel, number) {
    this._channel = channel;
    this._number = number;
  }
  free() { return this._channel.ask("drop", { number: this._number }); }
}

/** A session in a worker. */
export class RemoteSession {
  /** @param {Channel} channel @param {number} number */
  constructor(channel, number) {
    this._channel = channel;
    this._number = number;
    /** @type {import("./edgedec.js").Result | null} */
    this.result = null;
  }
  /** @param {string} act @param {object} [given] */
  _ask(act, given) { return this._channel.ask(act, { number: this._number, ...given }); }
  /** @param {string} name @param {...any} given */
  _call(name, ...given) { return this._ask("call", { name, given }); }
  async fork() { return new RemoteSession(this._channel, await this._ask("fork")); }
  ids() { return this._ask("ids"); }
  cached() { return this._ask("cached"); }
  free() { return this._call("free"); }
  save() { return this._call("save"); }
  /** @param {Uint8Array} saved */
  load(saved) { return this._call("load", saved); }
  /** @param {number} length */
  truncate(length) { return this._call("truncate", length); }
  /** @param {number | bigint} seed */
  seed(seed) { return this._call("seed", seed); }
  /** @param {string | number[]} more */
  append(more) { return this._call("append", more); }
  /** @param {string | number[]} prompt */
  prefill(prompt) { return this._call("prefill", prompt); }
  /** @param {number} token */
  step(token) { return this._call("step", token); }
  logits() { return this._call("logits"); }
  /** @param {number[]} ids */
  score(ids) { return this._call("score", ids); }

  /** The tokens that follow a prompt. Leaving the loop, or `signal`, ends the generation after the forward call that runs.
   * @param {string | number[] | null} prompt @param {import("./edgedec.js").GenerateOptions} [options] */
  async *generate(prompt, { signal, ...options } = {}) {
    const ready = /** @type {any[]} */ ([]);
    let ended = false, taken = 0, failure = /** @type {Error | null} */ (null), wake = () => {};
    const { id, answer } = this._channel.send("generate", { number: this._number, prompt, options }, {
      tokens: tokens => { ready.push(...tokens); wake(); },
    });
    const end = answer.then(result => { this.result = result; }, error => { failure = error; }).then(() => { ended = true; wake(); });
    const stop = () => this._channel.ask("cancel", { which: id });
    signal?.addEventListener("abort", stop, { once: true });
    try {
      for (;;) {
        while (ready.length) {
          if (ready[0].id >= 0) taken++;
          yield ready.shift();
        }
        if (failure) throw failure;
        if (signal?.aborted) throw new EdgedecError("cancelled", "cancelled");
        if (ended) return;
        await new Promise(done => { wake = () => done(undefined); });
      }
    } finally {
      signal?.removeEventListener("abort", stop);
      if (!ended) await stop().then(() => end);
      // The worker runs ahead of the reader: tokens that were not read are removed from the text.
      const result = this.result;
      if (!failure && result && taken < result.generated) {
        await this.truncate(result.prompt + taken);
        result.generated = taken;
      }
    }
  }
}
