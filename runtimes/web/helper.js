// A thread of the engine: its module on the memory that all threads share, waiting for work. threads.js starts it.
import { node, wasi } from "./module.js";
import { waiting } from "./threads.js";

/** @param {{module: WebAssembly.Module, memory: WebAssembly.Memory, own: number, stack: number, number: number}} given
 * @param {(words: string) => void} post */
async function live({ module, memory, own, stack, number }, post) {
  // Helper threads only compute: the only host functions that they need are those for waiting.
  const host = /** @type {any} */ (new Proxy(waiting(memory), { get: (all, name) => /** @type {any} */ (all)[name] ?? (() => 1) }));
  const instance = await WebAssembly.instantiate(module, { env: { memory }, edgedec: host, ...wasi(() => memory.buffer) });
  const call = /** @type {Record<string, any>} */ (instance.exports);
  call.__stack_pointer.value = stack;
  call.edgedec_helper_begin(own);
  post("ready");
  try {
    call.edgedec_helper_help(number);
  } finally { call.edgedec_helper_lost(); }
}

/** @param {any} given @param {(words: string) => void} post */
const begin = (given, post) => live(given, post).catch(error => post(String(error)));

if (node) {
  const { parentPort } = await import("node:worker_threads");
  parentPort?.once("message", (/** @type {any} */ given) => begin(given, words => parentPort.postMessage(words)));
} else {
  const here = /** @type {any} */ (globalThis);
  here.onmessage = (/** @type {MessageEvent} */ { data }) => begin(data, words => here.postMessage(words));
}
