// For test_fma.py: node numbers.mjs MODULE FUNCTION OUT-BYTES COUNT OUT FILE..., arrays of so many elements.
import { readFileSync, writeFileSync } from "node:fs";

const [path, name, size, count, out, ...files] = process.argv.slice(2);
const { exports } = (await WebAssembly.instantiate(readFileSync(path), { wasi_snapshot_preview1: new Proxy({}, { get: () => () => 52 }) })).instance;
const inputs = files.map(file => readFileSync(file)), total = inputs.reduce((sum, each) => sum + each.length, Number(size));
let at = exports.memory.buffer.byteLength;
exports.memory.grow(Math.ceil(total / 65536) + 1);
const places = [...inputs, { length: Number(size) }].map(each => { const place = at; at += each.length; return place; });
inputs.forEach((each, i) => new Uint8Array(exports.memory.buffer).set(each, places[i]));
exports[name](...places, Number(count));
writeFileSync(out, Buffer.from(exports.memory.buffer, places.at(-1), Number(size)));
