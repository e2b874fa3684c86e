// The second engine: ONNX Runtime's, on WebAssembly or WebGPU, over a bundle's graph for it (edgedec add web). It decodes
// one token a call, the likeliest one, with a float cache; its sums are not those of the edgedec engine, which is faster on
// WebAssembly and is exact.
//
//     import * as ort from "onnxruntime-web/webgpu";
//     import { openOrt } from "edgedec/ort";
//     const model = await openOrt("./nano/", { ort, provider: "webgpu" });
import { fetched } from "./bundle.js";
import { EdgedecError } from "./memory.js";

const PROVIDERS = ["wasm", "webgpu"];

/** @param {Uint8Array} bytes */
async function sha256(bytes) {
  const digest = await crypto.subtle.digest("SHA-256", /** @type {any} */ (bytes));
  return Array.from(new Uint8Array(digest), byte => byte.toString(16).padStart(2, "0")).join("");
}

/** Opens the graph of a bundle, a folder, in ONNX Runtime.
 * @param {string | URL} source
 * @param {{ort: any, provider?: "wasm" | "webgpu", cache?: boolean, onProgress?: (done: number, total: number) => void}} options
 * `ort`: the module of onnxruntime-web, 1.30 or later */
export async function openOrt(source, { ort, provider = "wasm", ...rest }) {
  if (!PROVIDERS.includes(provider)) throw new EdgedecError(`${provider}: not one of ${PROVIDERS.join(", ")}`, "usage");
  if (provider === "webgpu" && !(await /** @type {any} */ (globalThis.navigator)?.gpu?.requestAdapter()))
    throw new EdgedecError("webgpu: this browser has no WebGPU adapter; use wasm", "unavailable");
  const { named } = await fetched(source, rest);
  const manifest = JSON.parse(new TextDecoder().decode(named.get("edgedec.json"))), artifact = manifest.artifacts?.web;
  if (!artifact) throw new EdgedecError(`${source}: has no graph for ONNX Runtime; run \`edgedec add web BUNDLE\` first`, "not_found");
  const files = [artifact.facts.model, manifest.weights];
  for (const name of files)
    if ((await sha256(/** @type {Uint8Array} */ (named.get(name)))) !== manifest.files[name].sha256)
      throw new EdgedecError(`${source}: ${name}: content differs from its hash; download the bundle again`, "corrupt");
  const session = await ort.InferenceSession.create(named.get(files[0]), {
    executionProviders: [provider], externalData: [{ path: files[1], data: named.get(files[1]) }],
  });
  return new OrtModel(ort, session, manifest);
}

/** A decoder in ONNX Runtime. */
export class OrtModel {
  /** @param {any} ort @param {any} session @param {any} manifest */
  constructor(ort, session, manifest) {
    this._ort = ort;
    this._session = session;
    this.name = manifest.name;
    this.eos = /** @type {number[]} */ (manifest.text.eos);
    this._past = session.inputMetadata.filter((/** @type {any} */ each) => each.name.startsWith("past_key_values."));
  }

  /** @param {number[]} ids @param {number} total */
  _feeds(ids, total) {
    const tensor = (/** @type {number[]} */ values) =>
      new this._ort.Tensor("int64", BigInt64Array.from(values, BigInt), [1, values.length]);
    return { input_ids: tensor(ids), attention_mask: tensor(new Array(total).fill(1)) };
  }
  _empty() {
    const past = /** @type {Record<string, any>} */ ({});
    for (const { name, shape } of this._past) {
      const dims = shape.map((/** @type {any} */ dim, /** @type {number} */ i) => i === 0 ? 1 : i === 2 ? 0 : dim);
      past[name] = new this._ort.Tensor("float32", new Float32Array(0), dims);
    }
    return past;
  }

  /** The likeliest tokens after a prompt. @param {number[]} prompt @param {{maxTokens?: number}} [options] */
  async *generate(prompt, { maxTokens = 128 } = {}) {
    let ids = prompt, total = prompt.length, past = this._empty();
    for (let n = 0; n < maxTokens; n++, total++) {
      const found = await this._session.run({ ...this._feeds(ids, total), ...past });
      const token = largest(await found.logits.getData());
      for (const each of Object.values(past)) each.dispose?.();
      past = {};
      for (const { name } of this._past) past[name] = found[name.replace("past_key_values", "present")];
      if (this.eos.includes(token)) return;
      yield { id: token, drafted: false };
      ids = [token];
    }
  }
  release() { return this._session.release(); }
}

/** @param {Float32Array} logits */
function largest(logits) {
  let best = 0;
  for (let i = 1; i < logits.length; i++) if (logits[i] > logits[best]) best = i;
  if (!Number.isFinite(logits[best])) throw new EdgedecError("the logits are not finite", "unavailable");
  return best;
}
