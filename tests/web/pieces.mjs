// Bundles in pieces before a server and a cache storage of memory: bundle.js alone, nothing compiled.
//     node pieces.mjs ACT
const PIECE = 40, kept = new Map();
const store = {
  async match(key) { const found = kept.get(key); return found && new Response(found.bytes, { headers: found.headers }); },
  async put(key, response) { kept.set(key, { bytes: new Uint8Array(await response.arrayBuffer()), headers: [...response.headers] }); },
  async keys() { return [...kept.keys()].map(url => ({ url })); },
  async delete(request) { return kept.delete(request.url); },
};
let version = 1, left = Infinity, asked = 0;
globalThis.fetch = async (url, { headers }) => {
  if (++asked > 20) {
    console.log("no end");
    process.exit(1);
  }
  if (left-- <= 0) throw new Error("offline");
  const [, first, last] = headers.Range.match(/(\d+)-(\d+)/).map(Number), file = new Uint8Array(100).fill(version);
  const part = file.slice(first, last + 1);
  return new Response(part, { status: 206,
    headers: { "Content-Range": `bytes ${first}-${first + part.length - 1}/${file.length}`, ETag: `"${version}"` } });
};
const { fetched } = await import("../../runtimes/web/bundle.js");

/** The first and last byte, or the error. */
async function load(name = "a.edb") {
  try {
    const { packed } = await fetched(`http://there/${name}`, { piece: PIECE });
    return [packed[0], packed.at(-1), packed.length];
  } catch (error) { return error.message; }
}
const ACTS = {
  /** Nobody asks how far it is. */
  async quiet() { return [await load(), asked]; },
  /** A load breaks off, then the file changes; a second file is kept as it is. */
  async changed() {
    globalThis.caches = { open: async () => store };
    await load("b.edb");
    left = 1;
    const found = [await load()];
    [left, version] = [Infinity, 2];
    return [...found, await load(), await load(), await load("b.edb")];
  },
};
console.log(JSON.stringify(await ACTS[process.argv[2]]()));
