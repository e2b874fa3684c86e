// Threads of the engine: workers that each have an instance of its module on one shared memory. All are started before
// the engine is opened, because a worker cannot be started while the engine waits.
import { EdgedecError } from "./memory.js";
import { node } from "./module.js";

const MOST = 8, BYTES_A_THREAD = 2 << 20;  // kernels/lib/model.cpp
const PAGES = 65535, FIRST_PAGES = 512;    // as kernels/wasm/build.py links them

/** Why there are no threads here; "": there are. */
export function noThreads() {
  if (typeof SharedArrayBuffer === "undefined" || !(node || globalThis.crossOriginIsolated))
    return "this page is not isolated from others; have its server send Cross-Origin-Opener-Policy: same-origin and "
      + "Cross-Origin-Embedder-Policy: require-corp";
  if (typeof document !== "undefined") return "a page must not wait for threads; use edgedec/worker";
  return node || typeof Worker !== "undefined" ? "" : "workers of this browser cannot make workers";
}

/** The number of threads for a bundle of so many bytes. @param {number} bytes */
export function threadsFor(bytes) {
  const cores = globalThis.navigator?.hardwareConcurrency ?? 1;
  return Math.max(1, Math.min(cores, MOST, Math.floor(bytes / BYTES_A_THREAD)));
}

/** Memory for several threads; null if the browser refuses it. */
export function sharedMemory() {
  try {
    return new WebAssembly.Memory({ initial: FIRST_PAGES, maximum: PAGES, shared: true });
  } catch (error) {
    if (error instanceof RangeError) return null;
    throw error;
  }
}

/** What threads import to wait for each other. @param {WebAssembly.Memory} memory */
export function waiting(memory) {
  let numbers = new Int32Array(memory.buffer);
  const at = (/** @type {number} */ address) => {
    if (numbers.buffer.byteLength <= address) numbers = new Int32Array(memory.buffer);  // it has grown
    return address >>> 2;
  };
  return {
    wait(/** @type {number} */ address, /** @type {number} */ value, /** @type {number} */ milliseconds) {
      const i = at(address >>> 0);
      Atomics.wait(numbers, i, value, milliseconds < 0 ? Infinity : milliseconds);
    },
    wake(/** @type {number} */ address, /** @type {number} */ most) {
      const i = at(address >>> 0);
      Atomics.notify(numbers, i, most >>> 0);
    },
  };
}

/** @param {URL} url @returns {Promise<any>} */
async function worker(url) {
  if (!node) return new Worker(url, { type: "module", name: "edgedec-thread" });
  const { Worker: NodeWorker } = await import("node:worker_threads");
  return new NodeWorker(url);
}

/** A worker on the engine's memory.
 * @param {WebAssembly.Module} module @param {import("./memory.js").Memory} memory @param {number} number */
async function helper(module, memory, number) {
  const bytes = memory.call.helper_bytes(), own = memory.alloc(bytes), made = await worker(new URL("./helper.js", import.meta.url));
  await new Promise((done, failed) => {
    const lost = (/** @type {any} */ event) =>
      failed(new EdgedecError(`threads: a worker failed: ${event?.message ?? event ?? "it could not be loaded"}`, "unavailable"));
    const arrived = (/** @type {any} */ words) => words === "ready" ? done(undefined) : lost(words);
    if (node) made.once("message", arrived).once("error", lost);
    else made.onmessage = (/** @type {MessageEvent} */ event) => arrived(event.data), made.onerror = lost;
    made.postMessage({ module, memory: memory.memory, own, stack: own + bytes, number });
  });
  if (node) made.unref();  // a program may end while they wait
  return made;
}

/** Adds helper threads to the engine; `memory.close()` ends them.
 * @param {WebAssembly.Module} module @param {import("./memory.js").Memory} memory @param {number} n */
export async function addHelpers(module, memory, n) {
  const started = await Promise.allSettled(Array.from({ length: n }, (_, number) => helper(module, memory, number)));
  for (const each of started) if (each.status === "fulfilled") memory.helpers.push(each.value);
  const failed = started.find(each => each.status === "rejected");
  if (failed) {
    memory.close("a thread could not be started");
    throw /** @type {PromiseRejectedResult} */ (failed).reason;
  }
  memory.call.helpers(n);
}
