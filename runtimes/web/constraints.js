// Structured output: llguidance, in a module of its own that is loaded at first use, and the functions that the engine
// imports.
import { EdgedecError } from "./memory.js";
import { moduleOf, wasi } from "./module.js";

const NAME = "edgedec-constraints.wasm";
const utf8 = new TextEncoder(), text = new TextDecoder();

/** llguidance for one engine. Handles are addresses in its memory. */
export class Constraints {
  constructor() {
    this.engine = /** @type {import("./memory.js").Memory | null} */ (null);
    this._call = /** @type {Record<string, any> | null} */ (null);
    this._loading = /** @type {Promise<void> | null} */ (null);
    this._why = "it is not loaded";
  }

  /** Loads the module, once. @param {string | URL} base where it is */
  load(base) {
    this._loading ??= this._load(base).catch(error => {
      this._loading = null;
      throw error;
    });
    return this._loading;
  }
  /** @param {string | URL} base */
  async _load(base) {
    const module = await moduleOf(NAME, base).catch(error => {
      throw new EdgedecError(`structured output needs ${NAME} (${error.message}); make it by kernels/wasm/build.py --constraints`, "unavailable");
    });
    const buffer = () => /** @type {any} */ (this._call).memory.buffer;
    const tokens = (/** @type {number} */ at, /** @type {number} */ n, /** @type {number} */ out, /** @type {number} */ room) => this._tokens(at, n, out, room);
    const { exports } = await WebAssembly.instantiate(module, { edgedec: { tokens }, ...wasi(buffer) });
    this._call = exports;
    this._call._initialize?.();
  }

  /** What the engine imports. @returns {Record<string, Function>} */
  host() {
    return {
      constraint_vocabulary: (/** @type {number} */ json, /** @type {number} */ size, /** @type {number} */ n, /** @type {number} */ ends, /** @type {number} */ nEnds) =>
        this._tried(0, call => this._vocabulary(call, json >>> 0, size, n, ends >>> 0, nEnds)),
      constraint_matcher: (/** @type {number} */ vocabulary, /** @type {number} */ kind, /** @type {number} */ given, /** @type {bigint} */ first, /** @type {bigint} */ step) =>
        this._tried(0, call => this._with([this._string(kind >>> 0), this._string(given >>> 0)], (a, b) => call.matcher(vocabulary, a, b, first, step))),
      constraint_mask: (/** @type {number} */ matcher, /** @type {number} */ out, /** @type {number} */ words) => this._tried(-1, call => {
        const at = call.mask(matcher) >>> 0;
        if (at) this._engine().bytes.set(new Uint8Array(call.memory.buffer, at, 4 * words), out >>> 0);
        return at ? 0 : -1;
      }),
      constraint_ask: (/** @type {number} */ matcher, /** @type {number} */ what, /** @type {number} */ argument) =>
        this._tried(what ? -1 : 1, call => call.ask(matcher, what, argument)),
      constraint_why: (/** @type {number} */ matcher, /** @type {number} */ out, /** @type {number} */ room) => {
        const why = this._tried("", call => matcher ? this._read(call.why(matcher) >>> 0) : "") || this._why;
        return this._put(why, out >>> 0, room);
      },
      constraint_free: (/** @type {number} */ vocabulary, /** @type {number} */ matcher) => this._tried(0, call => call.discard(vocabulary, matcher)),
    };
  }

  /** The result of `work`; `otherwise` if it traps, after which the module cannot be used any more.
   * @template T @param {T} otherwise @param {(call: Record<string, any>) => T} work @returns {T} */
  _tried(otherwise, work) {
    if (!this._call) return otherwise;
    try {
      return work(this._call);
    } catch (error) {
      this._why = `llguidance stopped (${/** @type {Error} */ (error).message}); open the bundle again`;
      this._call = null;
      return otherwise;
    }
  }
  _engine() { return /** @type {import("./memory.js").Memory} */ (this.engine); }

  /** @param {Record<string, any>} call @param {number} json @param {number} size @param {number} n @param {number} ends @param {number} nEnds */
  _vocabulary(call, json, size, n, ends, nEnds) {
    const ROOM = 512, bytes = this._engine().bytes;
    const parts = [bytes.slice(ends, ends + 4 * nEnds), new Uint8Array(ROOM), zeroed(bytes.subarray(json, json + size))];
    return this._with(parts, (a, why, b) => {
      const found = call.vocabulary(b, n, a, nEnds, why, ROOM);
      if (!found) this._why = this._read(why);
      return found;
    });
  }

  /** Has copies of `parts` in the module's memory for as long as `work` runs.
   * @param {Uint8Array[]} parts @param {(...at: number[]) => number} work */
  _with(parts, work) {
    const call = /** @type {Record<string, any>} */ (this._call);
    const held = parts.map(part => call.take(part.length) >>> 0);
    parts.forEach((part, i) => new Uint8Array(call.memory.buffer, held[i], part.length).set(part));
    const found = work(...held);
    held.forEach((at, i) => call.release(at, parts[i].length));
    return found;
  }

  /** The tokens of a text in the module's memory, by the engine. @param {number} at @param {number} n @param {number} out @param {number} room */
  _tokens(at, n, out, room) {
    const engine = this._engine(), memory = /** @type {any} */ (this._call).memory;
    const from = engine.alloc(n), to = engine.alloc(4 * room);
    engine.bytes.set(new Uint8Array(memory.buffer, at >>> 0, n), from);
    const found = engine.call.constraint_tokens(from, n, to, room);
    new Uint8Array(memory.buffer, out >>> 0, 4 * room).set(engine.bytes.subarray(to, to + 4 * Math.min(found, room)));
    engine.call.free(from), engine.call.free(to);
    return found;
  }

  /** A string of the engine's, with its zero. @param {number} at */
  _string(at) {
    const { bytes } = this._engine();
    return bytes.slice(at, bytes.indexOf(0, at) + 1);
  }
  /** A string of the module's; "" of null. @param {number} at */
  _read(at) {
    const bytes = new Uint8Array(/** @type {any} */ (this._call).memory.buffer);
    return at ? text.decode(bytes.slice(at, bytes.indexOf(0, at))) : "";
  }
  /** Writes a text to the engine's memory; returns its bytes. @param {string} words @param {number} at @param {number} room */
  _put(words, at, room) {
    const bytes = utf8.encode(words).slice(0, room);
    this._engine().bytes.set(bytes, at);
    return bytes.length;
  }
}

/** A copy with a final zero. @param {Uint8Array} bytes */
function zeroed(bytes) {
  const made = new Uint8Array(bytes.length + 1);
  made.set(bytes);
  return made;
}
