// Options of a generation as structures of the library.
import { EdgedecError } from "./memory.js";

/** The options, if all their names are known. @template {object} T @param {T} options @param {string[]} names @returns {T} */
export function checked(options, names) {
  for (const name of Object.keys(options))
    if (!names.includes(name)) throw new EdgedecError(`no option ${name}; there are ${names.join(", ")}`, "usage");
  return options;
}

const SAMPLING = { temperature: "temperature", topP: "top_p", minP: "min_p", typicalP: "typical_p",
  repetitionPenalty: "repetition_penalty", presencePenalty: "presence_penalty", frequencyPenalty: "frequency_penalty", topK: "top_k" };
const NAMES = [...Object.keys(SAMPLING), "logitBias", "seed", "maxTokens", "minTokens", "ignoreEos", "logprobs", "stopTokens", "stop",
  "signal", "schema", "regex", "grammar"];
const KINDS = { schema: "json_schema", regex: "regex", grammar: "lark" };

/** What the text must be: its kind for the library and its text; null: anything. @param {Record<string, any>} options */
export function constraintOf(options) {
  const asked = Object.entries(KINDS).filter(([name]) => options[name] !== undefined && options[name] !== null);
  if (asked.length > 1) throw new EdgedecError(`${asked.map(([name]) => name).join(" and ")}: one of them at a time`, "usage");
  if (!asked.length) return null;
  const [[name, kind]] = asked, given = options[name];
  if (name !== "schema" && typeof given !== "string") throw new EdgedecError(`${name}: must be a string`, "usage");
  return { kind, text: typeof given === "string" ? given : JSON.stringify(given) };
}

/** @param {unknown} value @param {string} name */
function number(value, name) {
  if (typeof value !== "number") throw new EdgedecError(`${name}: must be a number`, "usage");
  return value;
}
/** @param {unknown} value @param {string} name */
function whole(value, name) {
  if (!Number.isInteger(value) || Math.abs(/** @type {number} */ (value)) > 2 ** 31 - 1) throw new EdgedecError(`${name}: must be a whole number`, "usage");
  return /** @type {number} */ (value);
}

/** @param {import("./memory.js").Scope} scope @param {Record<string, any>} options */
function sampling(scope, options) {
  const fields = /** @type {Record<string, number | bigint>} */ ({});
  for (const [name, field] of Object.entries(SAMPLING))
    if (options[name] !== undefined) fields[field] = name === "topK" ? whole(options[name], name) : number(options[name], name);
  const bias = Object.entries(options.logitBias ?? {});
  if (bias.length) {
    fields.n_bias = bias.length;
    fields.bias_tokens = scope.i32(bias.map(([token]) => Number(token)));
    fields.bias = scope.f32(bias.map(([, amount]) => number(amount, "logitBias")));
  }
  if (options.seed !== undefined && options.seed !== null) {
    let seed;
    try { seed = BigInt(options.seed); } catch { seed = -1n; }
    if (seed < 0n || seed >= 1n << 64n) throw new EdgedecError("seed: must be a whole number from 0 to 2^64 - 1", "usage");
    fields.seed = seed, fields.seeded = 1;
  }
  return scope.struct("sampling", "sampling_init", fields);
}

/** The library's structure of options; what it points to lives as long as the scope.
 * @param {import("./memory.js").Scope} scope @param {Record<string, any>} given @param {boolean} text */
export function generateOptions(scope, given, text) {
  const options = checked(given, NAMES), constraint = constraintOf(options);
  const fields = /** @type {Record<string, number | bigint>} */ ({ text: text ? 1 : 0, sampling: sampling(scope, options) });
  for (const [name, field] of [["maxTokens", "max_tokens"], ["minTokens", "min_tokens"], ["logprobs", "logprobs"]])
    if (options[name] !== undefined && options[name] !== null) fields[field] = whole(options[name], name);
  if (options.ignoreEos) fields.ignore_eos = 1;
  if (constraint) fields.constraint = scope.string(constraint.text), fields.constraint_kind = scope.string(constraint.kind);
  const ends = [...options.stopTokens ?? []], stop = [options.stop ?? []].flat();
  if (ends.length) fields.stop_tokens = scope.i32(ends), fields.n_stop_tokens = ends.length;
  if (stop.length) {
    const list = scope.alloc(4 * stop.length), texts = stop.map(each => scope.string(each));
    texts.forEach((at, i) => scope.memory.view.setUint32(list + 4 * i, at, true));
    fields.stop = list, fields.n_stop = stop.length;
  }
  return scope.struct("generate_options", "generate_options_init", fields);
}
