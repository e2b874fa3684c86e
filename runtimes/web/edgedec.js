// edgedec in JavaScript: a bundle, sessions, generations. See docs/web.md.
//
//     import { open } from "edgedec";
//     const model = await open("nano.edb");
//     for await (const token of model.session().generate("Once upon a time", { maxTokens: 60 })) write(token.text);
import { fetched } from "./bundle.js";
import { Constraints } from "./constraints.js";
import { Generation, together } from "./generation.js";
import { EdgedecError, scoped } from "./memory.js";
import { engineModule, instantiate, relaxed } from "./module.js";
import { checked } from "./options.js";
import { addHelpers, noThreads, sharedMemory, threadsFor, waiting } from "./threads.js";

export { EdgedecError, relaxed, together };
export { forget } from "./bundle.js";

const STRINGS = { name: 0, architecture: 1, kv: 2, isa: 3, digest: 4, chatTemplate: 5, bosToken: 6, eosToken: 7, noText: 8 };
const AROUND = 1, SPECIAL = 2;
// Frees unreachable models, adapters and sessions: threads, weights, caches.
const forgotten = new FinalizationRegistry(/** @param {() => void} free */ free => free());

/** Opens a bundle: the URL of a packed file or of a folder (ending in /), its bytes, or, in node, a path.
 * @param {string | URL | ArrayBuffer | Uint8Array} source @param {import("./edgedec.js").OpenOptions} [options] */
export async function open(source, options = {}) {
  const { kv, isa = "auto", verify = true, memoryLimit = 0, prefixTokens = 0, threads = 0, base = import.meta.url, ...rest } = checked(
    options, ["kv", "isa", "verify", "memoryLimit", "prefixTokens", "threads", "base", "onProgress", "cache", "signal", "piece"]);
  const shared = memoryOf(threads);
  const [files, module] = await Promise.all([fetched(source, rest), engineModule(isa, !!shared, base)]);
  const running = /** @type {Map<number, Generation>} */ (new Map()), constraints = new Constraints();
  const token = (/** @type {number} */ number, /** @type {number} */ at) => running.get(number)?.take(at) ?? 1;
  const memory = await instantiate(module, { token, ...constraints.host(), ...(shared && waiting(shared)) }, shared);
  constraints.engine = memory;
  const n = threads || (shared ? threadsFor(bytesOf(files)) : 1);
  if (n > 1) await addHelpers(module, memory, n - 1);
  try {
    const fields = { verify: verify ? 1 : 0, memory_limit: BigInt(memoryLimit), prefix_tokens: prefixTokens, threads: n };
    return new Model(memory, opened(memory, files, fields, kv, isa), running, () => constraints.load(base));
  } catch (error) {
    memory.close("the bundle could not be opened");
    throw error;
  }
}

/** Memory for so many threads, 0: as many as pay; null where there is one. @param {number} threads */
function memoryOf(threads) {
  if (!Number.isInteger(threads) || threads < 0 || threads > 64) throw new EdgedecError("threads: must be a whole number from 0 to 64", "usage");
  const why = threads === 1 ? "" : noThreads();
  if (threads > 1 && why) throw new EdgedecError(`threads: ${why}`, "unavailable");
  const made = threads === 1 || why ? null : sharedMemory();
  if (threads > 1 && !made) throw new EdgedecError("threads: no memory that threads could share is to be had", "memory");
  return made;
}

/** @param {import("./bundle.js").Files} files */
function bytesOf({ packed, named }) {
  return [packed, ...named.values()].reduce((sum, bytes) => sum + (bytes?.length ?? 0), 0);
}

/** The engine's handle of a bundle.
 * @param {import("./memory.js").Memory} memory @param {import("./bundle.js").Files} files @param {Record<string, number | bigint>} fields
 * @param {string | undefined} kv @param {string} isa */
function opened(memory, files, fields, kv, isa) {
  const held = put(memory, files);
  return scoped(memory, scope => {
    if (kv) fields.kv = scope.string(kv);
    if (isa === "wasm-relaxed") fields.isa = scope.string(isa);
    const given = scope.struct("open_options", "open_options_init", fields);
    if (held.packed) return scope.made("open_memory", held.packed.at, BigInt(held.packed.size), given);
    return scope.made("open", scope.string("bundle"), given);
  });
}

/** Puts files into the engine's memory: a packed bundle as it is, others by their names.
 * @param {import("./memory.js").Memory} memory @param {import("./bundle.js").Files} files */
function put(memory, files) {
  const place = (/** @type {Uint8Array} */ bytes) => {
    const at = memory.alloc(bytes.length);
    memory.bytes.set(bytes, at);
    return { at, size: bytes.length };
  };
  if (files.packed) return { packed: place(files.packed) };
  for (const [name, bytes] of files.named) {
    const { at, size } = place(bytes);
    scoped(memory, scope => memory.check("file_put", scope.string(`bundle/${name}`), at, size));
  }
  return { packed: null };
}

/** An open bundle. */
export class Model {
  /** @param {import("./memory.js").Memory} memory @param {number} handle @param {Map<number, Generation>} running
   * @param {() => Promise<void>} constraints loads what structured output needs */
  constructor(memory, handle, running, constraints) {
    this._memory = memory;
    this._handle = handle;
    this._running = running;
    this._constraints = constraints;
    forgotten.register(this, () => memory.close("the model was closed"), this);
    const info = scoped(memory, scope => {
      const at = scope.struct("model_info", null), size = memory.layouts.model_info[""][0];
      memory.check("info", handle, at, size);
      return scope.read("model_info", at);
    });
    this.vocabSize = info.vocab_size;
    this.contextLength = info.context_length;
    this.threads = info.threads;
    this.weightsBytes = Number(info.weights_bytes);
    for (const [name, what] of Object.entries(STRINGS))
      Object.defineProperty(this, name, { value: memory.string(memory.call.model_string(handle, what)), enumerable: true });
  }

  /** @param {import("./edgedec.js").SessionOptions} [options] */
  session(options = {}) {
    const { context = 0, sinks = -1, speculate = "auto", draft = 0, adapter } = checked(options, ["context", "sinks", "speculate", "draft", "adapter"]);
    if (adapter && adapter.model !== this) throw new EdgedecError("adapter: of another model", "usage");
    return new Session(this, scoped(this._memory, scope => scope.made("session_new", this._handle,
      scope.struct("session_options", "session_options_init",
        { context, sinks, speculate: scope.string(speculate), draft, adapter: adapter?.handle ?? 0 }))));
  }

  /** A LoRA adapter: a file that `edgedec adapter` made for this model, by URL, path or bytes.
   * @param {string | URL | ArrayBuffer | Uint8Array} source @param {import("./edgedec.js").LoadOptions} [options] */
  async adapter(source, options = {}) {
    const { packed } = await fetched(source, checked(options, ["onProgress", "cache", "signal", "piece"]));
    if (!packed) throw new EdgedecError(`${source}: a folder; an adapter is one file`, "usage");
    return new Adapter(this, scoped(this._memory, scope => {
      const path = scope.string(typeof source === "string" || source instanceof URL ? `${source}` : "adapter");
      return withFile(this._memory, path, packed, () => scope.made("adapter_open", this._handle, path));
    }));
  }

  /** Ends its threads and frees its memory; its sessions cannot be used any more. */
  close() {
    forgotten.unregister(this);
    this._memory.close("the model was closed");
  }

  /** The tokens of a text. @param {string} text @param {{around?: boolean, special?: boolean}} [options] */
  encode(text, { around = true, special = true } = {}) {
    return scoped(this._memory, scope => {
      const bytes = new TextEncoder().encode(text), at = scope.bytes(bytes), flags = (around ? AROUND : 0) | (special ? SPECIAL : 0);
      const room = bytes.length + 8, out = scope.alloc(4 * room);
      const n = this._memory.run("encode", this._handle, at, BigInt(bytes.length), flags, out, room);
      if (n < 0) throw this._memory.failure(-n);
      return Array.from(new Int32Array(this._memory.memory.buffer, out, n));
    });
  }

  /** The text of tokens. @param {number[]} ids @param {{special?: boolean}} [options] */
  decode(ids, { special = false } = {}) {
    return scoped(this._memory, scope => {
      const at = scope.i32(ids), flags = special ? SPECIAL : 0;
      const n = Number(this._memory.run("decode", this._handle, at, ids.length, flags, 0, 0n));
      if (n < 0) throw this._memory.failure(-n);
      const out = scope.alloc(n + 1);
      this._memory.run("decode", this._handle, at, ids.length, flags, out, BigInt(n + 1));
      return this._memory.textAt(out, n);
    });
  }

  /** Bytes in use. */
  get memory() {
    const found = scoped(this._memory, scope => {
      const at = scope.struct("memory_use", null);
      this._memory.check("memory", this._handle, at, this._memory.layouts.memory_use[""][0]);
      return scope.read("memory_use", at);
    });
    return { cache: Number(found.cache_bytes), prefixes: Number(found.prefix_bytes), sessions: found.sessions,
      total: this._memory.memory.buffer.byteLength };
  }
}

/** `work`, while the engine finds these bytes as a file. @template T @param {import("./memory.js").Memory} memory @param {number} path
 * @param {Uint8Array} bytes @param {() => T} work @returns {T} */
function withFile(memory, path, bytes, work) {
  const at = memory.alloc(bytes.length);
  memory.bytes.set(bytes, at);
  memory.check("file_put", path, at, bytes.length);
  try { return work(); } finally { memory.call.file_remove(path); }
}

/** What a LoRA adapter adds to a model's weights. */
export class Adapter {
  /** @param {Model} model @param {number} handle */
  constructor(model, handle) {
    this.model = model;
    this._handle = handle;
    const memory = model._memory;
    forgotten.register(this, () => { if (!memory.dead) memory.call.adapter_close(handle); }, this);
  }
  get handle() {
    if (!this._handle) throw new EdgedecError("the adapter was freed", "usage");
    return this._handle;
  }
  /** Its memory goes with its last session. */
  free() {
    if (!this._handle) return;
    forgotten.unregister(this);
    this.model._memory.run("adapter_close", this._handle);
    this._handle = 0;
  }
}

/** One text and its cache. */
export class Session {
  /** @param {Model} model @param {number} handle */
  constructor(model, handle) {
    this.model = model;
    this._handle = handle;
    this._memory = model._memory;
    /** @type {import("./edgedec.js").Result | null} */
    this.result = null;
    const memory = this._memory;
    forgotten.register(this, () => { if (!memory.dead) memory.call.session_free(handle); }, this);
  }
  /** Frees its cache now. */
  free() {
    if (!this._handle) return;
    if ([...this.model._running.values()].some(each => each.session === this))
      throw new EdgedecError("the session is generating; leave that loop first", "busy");
    forgotten.unregister(this);
    this._memory.run("session_free", this._handle);
    this._handle = 0;
  }
  get handle() {
    if (!this._handle) throw new EdgedecError("the session was freed", "usage");
    return this._handle;
  }

  /** The tokens of the text. */
  get ids() {
    return scoped(this._memory, scope => {
      const room = this._memory.run("session_length", this.handle), out = scope.alloc(4 * room);
      const n = this._memory.run("session_tokens", this.handle, 0, out, room);
      return Array.from(new Int32Array(this._memory.memory.buffer, out, n));
    });
  }
  /** How many of them are in the cache. */
  get cached() { return this._memory.run("session_cached", this.handle); }
  /** An independent session with the same text, whose cache shares its pages. */
  fork() { return new Session(this.model, scoped(this._memory, scope => scope.made("session_fork", this.handle))); }
  /** The text becomes shorter. @param {number} length */
  truncate(length) { this._memory.check("session_truncate", this.handle, length); }
  /** @param {number | bigint} seed */
  seed(seed) { this._memory.check("session_seed", this.handle, BigInt(seed)); }

  /** Text, cache and random numbers, as a file that Python and C read too. */
  save() {
    return scoped(this._memory, scope => {
      const path = scope.string("saved");
      this._memory.check("session_save", this.handle, path);
      const at = this._memory.call.file_data(path), size = this._memory.call.file_size(path);
      const found = this._memory.bytes.slice(at, at + size);
      this._memory.call.file_remove(path);
      return found;
    });
  }
  /** @param {Uint8Array} saved */
  load(saved) {
    scoped(this._memory, scope => {
      const path = scope.string("saved");
      withFile(this._memory, path, saved, () => this._memory.check("session_load", this.handle, path));
    });
  }

  /** Tokens are added to the text; the next call reads them. @param {string | number[]} more */
  append(more) {
    const ids = typeof more === "string" ? this.model.encode(more, { around: false }) : more;
    scoped(this._memory, scope => this._memory.check("session_append", this.handle, scope.i32(ids), ids.length));
  }
  /** Makes tokens the text and computes it. @param {string | number[]} prompt */
  prefill(prompt) {
    const ids = typeof prompt === "string" ? this.model.encode(prompt) : prompt;
    scoped(this._memory, scope => this._memory.check("prefill", this.handle, scope.i32(ids), ids.length));
  }
  /** Adds a token to the text and computes it. @param {number} token */
  step(token) { this._memory.check("step", this.handle, token); }
  /** Of the token that follows; a copy. */
  logits() {
    const at = this._memory.run("logits", this.handle) >>> 0;
    return at ? new Float32Array(this._memory.memory.buffer, at, this.model.vocabSize).slice() : null;
  }
  /** The log-probability of each token after the text and those before it. @param {number[]} ids */
  score(ids) {
    return scoped(this._memory, scope => {
      const at = scope.i32(ids), out = scope.alloc(8 * ids.length);
      this._memory.check("score", this.handle, at, ids.length, out);
      return Array.from(new Float64Array(this._memory.memory.buffer, out, ids.length));
    });
  }

  /** The tokens that follow a prompt, which is the whole text; null: that of the session. Leaving the loop ends it.
   * @param {string | number[] | null} prompt @param {import("./edgedec.js").GenerateOptions} [options] */
  async *generate(prompt, options = {}) {
    for await (const { token } of together([{ session: this, prompt, options }])) yield token;
  }
}
