// The WebAssembly modules: which of them this machine runs, fetched and compiled once, instantiated for each model.
import { EdgedecError, Memory } from "./memory.js";

// (module (func (result v128) (f32x4.relaxed_madd ...))): valid only where relaxed vectors are known.
const BEGIN = [0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10];
const SPLAT = [65, 1, 253, 15];  // i32.const 1, i8x16.splat
const RELAXED = new Uint8Array([...BEGIN, 19, 1, 17, 0, ...SPLAT, ...SPLAT, ...SPLAT, 253, 133, 2, 11]);
// The same of i8x16.splat: 128-bit vectors at all.
const VECTORS = new Uint8Array([...BEGIN, 8, 1, 6, 0, ...SPLAT, 11]);
export const node = typeof process !== "undefined" && !!process.versions?.node;

/** Whether there are relaxed vectors here, and right ones: in node before 22 they are an experiment that computes nonsense. */
export const relaxed = () => WebAssembly.validate(RELAXED) && !(node && parseInt(process.versions.node) < 22);

const compiled = /** @type {Map<string, Promise<WebAssembly.Module>>} */ (new Map());

/** @param {URL} url */
async function compile(url) {
  if (url.protocol === "file:") {
    const { readFile } = await import("node:fs/promises");
    return WebAssembly.compile(/** @type {any} */ (await readFile(url)));
  }
  const response = await fetch(url);
  if (!response.ok) throw new EdgedecError(`${url}: ${response.status} ${response.statusText}`, "not_found");
  if (response.headers.get("Content-Type") === "application/wasm") return WebAssembly.compileStreaming(response);
  return WebAssembly.compile(await response.arrayBuffer());
}

/** A module, compiled once. @param {string} name @param {string | URL} base where it is */
export function moduleOf(name, base) {
  const url = new URL(name, base);
  const found = compiled.get(url.href) ?? compile(url);
  compiled.set(url.href, found);
  found.catch(() => compiled.delete(url.href));
  return found;
}

/** The engine's module. @param {"auto" | "wasm" | "wasm-relaxed"} isa @param {boolean} threads @param {string | URL} base */
export async function engineModule(isa, threads, base) {
  if (!WebAssembly.validate(VECTORS))
    throw new EdgedecError("this browser has no WebAssembly vectors (SIMD); update it", "unavailable");
  if (isa === "wasm-relaxed" && !relaxed()) throw new EdgedecError("wasm-relaxed: this browser has no relaxed vectors", "unavailable");
  const plain = isa === "wasm" || (isa === "auto" && !relaxed());
  return moduleOf(`edgedec${plain ? "" : "-relaxed"}${threads ? "-threads" : ""}.wasm`, base);
}

/** The WASI functions that modules import: a clock, random bytes, output of error messages. They copy from and to
 * memory that may be shared, which browsers' random and text functions reject.
 * @param {() => ArrayBuffer} buffer the memory */
export function wasi(buffer) {
  const view = () => new DataView(buffer());
  const known = /** @type {Record<string, Function>} */ ({
    clock_time_get(/** @type {number} */ _id, /** @type {bigint} */ _precision, /** @type {number} */ out) {
      view().setBigUint64(out, BigInt(Math.round(performance.now() * 1e6)), true);
      return 0;
    },
    random_get(/** @type {number} */ at, /** @type {number} */ n) {
      new Uint8Array(buffer(), at, n).set(crypto.getRandomValues(new Uint8Array(n)));
      return 0;
    },
    fd_write(/** @type {number} */ _fd, /** @type {number} */ parts, /** @type {number} */ n, /** @type {number} */ out) {
      let total = 0, words = "";
      for (let i = 0; i < n; i++) {
        const at = view().getUint32(parts + 8 * i, true), size = view().getUint32(parts + 8 * i + 4, true);
        words += new TextDecoder().decode(new Uint8Array(buffer(), at, size).slice());
        total += size;
      }
      console.error(words);
      view().setUint32(out, total, true);
      return 0;
    },
    environ_sizes_get(/** @type {number} */ count, /** @type {number} */ size) {
      view().setUint32(count, 0, true);
      view().setUint32(size, 0, true);
      return 0;
    },
    proc_exit(/** @type {number} */ code) { throw new Error(`ended with ${code}`); },
  });
  const unknown = () => 52;  // not supported
  return { wasi_snapshot_preview1: new Proxy(known, { get: (all, name) => all[/** @type {string} */ (name)] ?? unknown }) };
}

/** An engine with a memory of its own, or on `shared` memory.
 * @param {WebAssembly.Module} module @param {Record<string, Function>} host its functions of the host @param {WebAssembly.Memory | null} shared */
export async function instantiate(module, host, shared) {
  const held = { memory: shared };
  const buffer = () => /** @type {WebAssembly.Memory} */ (held.memory).buffer;
  const instance = await WebAssembly.instantiate(module, {
    edgedec: /** @type {any} */ (host), ...wasi(buffer), ...(shared && { env: { memory: shared } }),
  });
  held.memory ??= /** @type {WebAssembly.Memory} */ (instance.exports.memory);
  /** @type {Function} */ (instance.exports._initialize)();
  return new Memory(instance, held.memory);
}
