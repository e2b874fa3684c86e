// The engine's memory: structures by the layouts that the module gives, strings, arrays of numbers.

const SETTERS = { i32: "setInt32", u32: "setUint32", f64: "setFloat64", u64: "setBigUint64" };
const GETTERS = { i32: "getInt32", u32: "getUint32", f64: "getFloat64", u64: "getBigUint64" };
const utf8 = new TextEncoder(), text = new TextDecoder();

/** An error; `code` is the library's name of it, such as "corrupt". */
export class EdgedecError extends Error {
  /** @param {string} message @param {string} code */
  constructor(message, code) {
    super(message);
    this.name = "EdgedecError";
    this.code = code;
  }
}

/** An instance of the module and its memory. */
export class Memory {
  /** @param {WebAssembly.Instance} instance @param {WebAssembly.Memory} memory */
  constructor(instance, memory) {
    this.call = /** @type {Record<string, Function>} */ ({});
    for (const [name, value] of Object.entries(instance.exports))
      if (name.startsWith("edgedec_")) this.call[name.slice(8)] = /** @type {Function} */ (value);
    this.memory = memory;
    this.layouts = JSON.parse(this.string(this.call.layouts()));
    this.dead = "";
    this.helpers = /** @type {{terminate: () => any}[]} */ ([]);
  }
  /** Makes the memory unusable and ends its threads. @param {string} why */
  close(why) {
    this.dead ||= why;
    for (const helper of this.helpers.splice(0)) helper.terminate();
  }

  /** Memory may have grown, which makes new buffers. */
  get view() { return new DataView(this.memory.buffer); }
  get bytes() { return new Uint8Array(this.memory.buffer); }

  /** Aligned memory of n bytes. @param {number} n */
  alloc(n) {
    const at = this.call.alloc(n) >>> 0;
    if (!at) throw new EdgedecError(`not enough memory for ${n} bytes; a 32-bit module has 4 GiB`, "memory");
    return at;
  }
  /** @param {number} at */
  string(at) {
    const bytes = this.bytes;
    let end = at;
    while (bytes[end]) end++;
    return text.decode(bytes.slice(at, end));
  }
  /** @param {number} at @param {number} n */
  textAt(at, n) { return n ? text.decode(this.bytes.slice(at, at + n)) : ""; }

  /** Calls a function that returns a status. @param {string} name @param {...any} given */
  check(name, ...given) {
    const status = this.run(name, ...given);
    if (status) throw this.failure(status);
  }
  /** @param {number} status @param {string} [message] */
  failure(status, message) {
    return new EdgedecError(message || this.string(this.call.last_error()), this.string(this.call.status_name(status)));
  }
  /** Calls a function; after a trap the instance's memory may be anything, and is not used again.
   * @param {string} name @param {...any} given */
  run(name, ...given) {
    if (this.dead) throw new EdgedecError(this.dead, "unavailable");
    try {
      return this.call[name](...given);
    } catch (error) {
      this.close(`the engine stopped at ${name} (${/** @type {Error} */ (error).message}); open the bundle again`);
      throw new EdgedecError(this.dead, "unavailable");
    }
  }
}

/** The temporary memory of a call, freed at once after it. */
export class Scope {
  /** @param {Memory} memory */
  constructor(memory) {
    this.memory = memory;
    this.held = /** @type {number[]} */ ([]);
  }
  /** @param {number} n */
  alloc(n) {
    const at = this.memory.alloc(n);
    this.held.push(at);
    return at;
  }
  free() { for (const at of this.held.splice(0)) this.memory.call.free(at); }

  /** @param {string} value */
  string(value) {
    if (value.includes("\0")) throw new EdgedecError("a string with a zero in it", "usage");
    return this.bytes(utf8.encode(value + "\0"));
  }
  /** @param {Uint8Array} value */
  bytes(value) {
    const at = this.alloc(value.length);
    this.memory.bytes.set(value, at);
    return at;
  }
  /** @param {ArrayLike<number>} ids */
  i32(ids) {
    for (const id of Array.from(ids))
      if (!Number.isInteger(id) || id < 0 || id > 2 ** 31 - 1) throw new EdgedecError(`${id}: not a token`, "usage");
    const at = this.alloc(4 * ids.length);
    new Int32Array(this.memory.memory.buffer, at, ids.length).set(ids);
    return at;
  }
  /** @param {number[]} values */
  f32(values) {
    const at = this.alloc(4 * values.length);
    new Float32Array(this.memory.memory.buffer, at, values.length).set(values);
    return at;
  }

  /** A structure: what `init` (a function of the library, or null) makes of it, and then these fields.
   * @param {string} name @param {string | null} init @param {Record<string, number | bigint>} [fields] */
  struct(name, init, fields = {}) {
    const layout = this.memory.layouts[name], size = layout[""][0], at = this.alloc(size);
    this.memory.bytes.fill(0, at, at + size);
    if (init) this.memory.call[init](at, size);
    else this.memory.view.setUint32(at, size, true);
    const view = this.memory.view;
    for (const [field, value] of Object.entries(fields)) {
      const [offset, type] = layout[field];
      /** @type {any} */ (view)[SETTERS[/** @type {"i32"} */ (type)]](at + offset, value, true);
    }
    return at;
  }
  /** @param {string} name @param {number} at */
  read(name, at) { return readStruct(this.memory, name, at); }
  /** Room for a pointer, and what stands there. */
  pointer() {
    const at = this.alloc(4);
    this.memory.view.setUint32(at, 0, true);
    return at;
  }
  /** The result of a function that writes it to the address in its last argument.
   * @param {string} name @param {...any} given */
  made(name, ...given) {
    const out = this.pointer();
    this.memory.check(name, ...given, out);
    return this.memory.view.getUint32(out, true);
  }
}

/** The fields of a structure. @param {Memory} memory @param {string} name @param {number} at */
export function readStruct(memory, name, at) {
  const view = memory.view, found = /** @type {Record<string, any>} */ ({});
  for (const [field, [offset, type]] of Object.entries(memory.layouts[name]))
    if (field) found[field] = /** @type {any} */ (view)[GETTERS[/** @type {"i32"} */ (type)]](at + offset, true);
  return found;
}

/** Does `work` with a scope. @template T @param {Memory} memory @param {(scope: Scope) => T} work @returns {T} */
export function scoped(memory, work) {
  const scope = new Scope(memory);
  try { return work(scope); } finally { scope.free(); }
}
