// Bundles over HTTP: in pieces, by range requests, which the browser's cache storage keeps. The engine checks the
// hashes.
import { EdgedecError } from "./memory.js";
import { node } from "./module.js";

/** @typedef {{packed: Uint8Array | null, named: Map<string, Uint8Array>}} Files */

const STORE = "edgedec-bundles", MANIFEST = "edgedec.json", PIECE = 8 << 20, LARGEST = 2 ** 32;
const PLAIN = /^[A-Za-z0-9_][A-Za-z0-9._-]*$/;

/** Deletes cached bundles. @param {string | URL} [source] the URL of one bundle; all by default */
export async function forget(source) {
  if (typeof caches === "undefined") return;
  if (source === undefined) return void (await caches.delete(STORE));
  const store = await caches.open(STORE), href = new URL(source, globalThis.location?.href).href;
  for (const request of await store.keys()) if (request.url.startsWith(href)) await store.delete(request);
}

/** The bytes of a bundle.
 * @param {string | URL | ArrayBuffer | Uint8Array} source
 * @param {{onProgress?: (done: number, total: number) => void, cache?: boolean, signal?: AbortSignal, piece?: number}} options
 * @returns {Promise<Files>} */
export async function fetched(source, options) {
  if (source instanceof ArrayBuffer) return { packed: new Uint8Array(source), named: new Map() };
  if (source instanceof Uint8Array) return { packed: source, named: new Map() };
  const url = await located(source);
  if (url.protocol === "file:") return fromDisk(url);
  if (!url.pathname.endsWith("/")) return { packed: await download(url, options), named: new Map() };
  return folder(url, options);
}

/** @param {string | URL} source */
async function located(source) {
  if (source instanceof URL) return source;
  if (node && !/^[a-z][a-z0-9+.-]+:/i.test(source)) {
    const { pathToFileURL } = await import("node:url");
    return pathToFileURL(source);
  }
  return new URL(source, globalThis.location?.href);
}

/** @param {URL} url @returns {Promise<Files>} */
async function fromDisk(url) {
  const { readFile, readdir, stat } = await import("node:fs/promises");
  try {
    if (!(await stat(url)).isDirectory()) return { packed: await readFile(url), named: new Map() };
    const home = new URL(url.href.endsWith("/") ? url : `${url}/`), named = new Map();
    for (const entry of await readdir(home, { withFileTypes: true }))
      if (!entry.isDirectory()) named.set(entry.name, await readFile(new URL(encodeURIComponent(entry.name), home)));
    return { packed: null, named };
  } catch (error) {
    throw new EdgedecError(`${url.pathname}: ${/** @type {Error} */ (error).message}`, "not_found");
  }
}

/** A folder: its manifest, then the files that it lists. @param {URL} url @param {Parameters<typeof fetched>[1]} options */
async function folder(url, options) {
  const raw = await download(new URL(MANIFEST, url), { ...options, onProgress: undefined });
  const named = new Map([[MANIFEST, raw]]);
  let files;
  try {
    files = /** @type {Record<string, {size: number}>} */ (JSON.parse(new TextDecoder().decode(raw)).files);
  } catch { throw new EdgedecError(`${url}${MANIFEST}: not JSON`, "corrupt"); }
  const total = Object.values(files).reduce((sum, file) => sum + file.size, 0);
  let before = 0;
  for (const [name, { size }] of Object.entries(files)) {
    if (!PLAIN.test(name)) throw new EdgedecError(`${url}: ${name} is not a plain file name`, "unsafe");
    const onProgress = (/** @type {number} */ done) => options.onProgress?.(before + done, total);
    named.set(name, await download(new URL(name, url), { ...options, onProgress }));
    before += size;
  }
  return { packed: null, named };
}

/** A file, whole. A server without ranges sends it at once.
 * @param {URL} url @param {Parameters<typeof fetched>[1]} options */
async function download(url, { onProgress, cache = true, signal, piece = PIECE }) {
  const store = cache && typeof caches !== "undefined" ? await caches.open(STORE).catch(() => null) : null;
  const first = await part(url, 0, piece, store, signal);
  onProgress?.(first.bytes.length, first.total);
  if (first.bytes.length === first.total) return first.bytes;
  if (first.total > LARGEST) throw new EdgedecError(`${url}: larger than the 4 GiB of a 32-bit module`, "memory");
  const whole = new Uint8Array(first.total);
  whole.set(first.bytes);
  for (let at = first.bytes.length; at < whole.length; ) {
    const next = await part(url, at, Math.min(piece, whole.length - at), store, signal, first.tag);
    if (next.total !== first.total || next.tag !== first.tag) {
      if (store) await forget(url).catch(() => {});  // else the next load would begin with the old pieces again
      throw new EdgedecError(`${url}: changed while it was loaded; load it again`, "corrupt");
    }
    whole.set(next.bytes, at);
    at += next.bytes.length;
    onProgress?.(at, whole.length);
  }
  return whole;
}

/** Bytes from `at` on: of the store, or of the server, and then stored. `total`: of the file; `tag`: of this version of it.
 * @param {URL} url @param {number} at @param {number} n @param {Cache | null} store @param {AbortSignal} [signal] @param {string} [tag] */
async function part(url, at, n, store, signal, tag) {
  const key = `${url.href}${url.search ? "&" : "?"}edgedec=${at}-${n}`;
  const kept = await store?.match(key);
  if (kept && (tag === undefined || kept.headers.get("X-Tag") === tag)) return opened(kept);
  const response = await fetch(url, { headers: { Range: `bytes=${at}-${at + n - 1}` }, signal }).catch(error => {
    if (signal?.aborted) throw new EdgedecError(`${url}: cancelled`, "cancelled");
    throw new EdgedecError(`${url}: cannot be reached (${error.message})`, "io");
  });
  if (response.status !== 206 && (response.status !== 200 || at)) throw new EdgedecError(`${url}: ${response.status} ${response.statusText}`, "not_found");
  const bytes = new Uint8Array(await response.arrayBuffer());
  const [, begin, total] = response.headers.get("Content-Range")?.match(/^bytes (\d+)-\d+\/(\d+)$/) ?? [];
  if (response.status === 206 && (Number(begin) !== at || bytes.length > n || !bytes.length))
    throw new EdgedecError(`${url}: the server sent another range than was asked for`, "io");
  const headers = { "X-Total": response.status === 206 ? total : String(bytes.length), "X-Tag": response.headers.get("ETag") ?? "" };
  const made = new Response(/** @type {any} */ (bytes), { headers });
  await store?.put(key, made.clone()).catch(() => {});  // a full store costs the next load time only
  return opened(made);
}

/** @param {Response} response */
async function opened(response) {
  return { bytes: new Uint8Array(await response.arrayBuffer()), total: Number(response.headers.get("X-Total")),
    tag: response.headers.get("X-Tag") ?? "" };
}
