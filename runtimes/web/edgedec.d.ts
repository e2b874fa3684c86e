/** edgedec in JavaScript; see docs/web.md. */

export interface LoadOptions {
  /** Bytes that have come. */
  onProgress?: (done: number, total: number) => void;
  /** Keep what was loaded in the browser's cache storage (default). */
  cache?: boolean;
  /** Bytes of a range request. */
  piece?: number;
  signal?: AbortSignal;
}

export interface OpenOptions extends LoadOptions {
  /** Cache format: "f32", "f16", "int8", "int4"; the bundle's first by default. */
  kv?: string;
  /** Instructions: relaxed vectors where the browser has them. Both give the same bytes. */
  isa?: "auto" | "wasm" | "wasm-relaxed";
  /** Check every file against its hash (default). */
  verify?: boolean;
  /** Bytes of all caches; 0: no limit. */
  memoryLimit?: number;
  /** So many tokens of ended texts stay cached for texts that begin alike. */
  prefixTokens?: number;
  /** 0 (default): as many as pay; one where memory cannot be shared: a page that is not cross-origin isolated, or that does
   * not use "edgedec/worker". The bytes are the same with any number. */
  threads?: number;
  /** Where the .wasm files are; beside edgedec.js by default. */
  base?: string | URL;
}

export interface SessionOptions {
  /** How many tokens it may hold; 0: the model's limit. */
  context?: number;
  /** A full context drops its oldest tokens but so many; -1: it ends the text. */
  sinks?: number;
  /** "off", "auto" (default), or of copy, suffix, recycling, trigram some, joined by "+". The text stays the same. */
  speculate?: string;
  /** Drafted tokens a call; 0: as many as pay. */
  draft?: number;
  /** Of `model.adapter`. */
  adapter?: Adapter;
}

export interface GenerateOptions {
  /** -1: until the context is full. */
  maxTokens?: number;
  minTokens?: number;
  ignoreEos?: boolean;
  /** Log-probabilities, and of so many likeliest tokens too; -1: none. */
  logprobs?: number;
  stopTokens?: Iterable<number>;
  stop?: string | string[];
  /** 0 (default): the likeliest token. */
  temperature?: number;
  topK?: number;
  topP?: number;
  minP?: number;
  typicalP?: number;
  repetitionPenalty?: number;
  presencePenalty?: number;
  frequencyPenalty?: number;
  logitBias?: Record<number, number>;
  /** The tokens that Python draws with it. */
  seed?: number | bigint | string | null;
  /** The text is JSON of this schema (an object, true, or its text). Of schema, regex and grammar one at a time. */
  schema?: object | true | string;
  /** The text is a match of this regular expression. */
  regex?: string;
  /** The text follows this Lark grammar. */
  grammar?: string;
  signal?: AbortSignal;
}

export interface Token {
  /** -1: only text, which was held back until the end. */
  id: number;
  /** What is certain by now: whole characters, nothing that may become a stop string. */
  text: string;
  /** It was drafted, and found right. */
  drafted: boolean;
  logprob: number;
  top: [id: number, logprob: number][];
}

export interface Result {
  finish: "eos" | "stop" | "length" | "context" | "stopped";
  prompt: number;
  cached: number;
  generated: number;
  calls: number;
  drafted: number;
  accepted: number;
  promptSeconds: number;
  seconds: number;
}

export interface Request {
  session: Session;
  /** Null: the session's text. */
  prompt: string | number[] | null;
  options?: GenerateOptions;
}

export class EdgedecError extends Error {
  /** Such as "corrupt", "usage", "not_found", "cancelled". */
  code: string;
  constructor(message: string, code: string);
}

export class Model {
  private constructor();
  readonly name: string;
  readonly architecture: string;
  readonly kv: string;
  readonly isa: string;
  readonly digest: string;
  readonly chatTemplate: string;
  readonly bosToken: string;
  readonly eosToken: string;
  /** Why there is no text, only tokens; "": there is. */
  readonly noText: string;
  readonly vocabSize: number;
  readonly contextLength: number;
  readonly threads: number;
  readonly weightsBytes: number;
  readonly memory: { cache: number; prefixes: number; sessions: number; total: number };
  session(options?: SessionOptions): Session;
  /** A LoRA adapter: a file that `edgedec adapter` made for this model. */
  adapter(source: string | URL | ArrayBuffer | Uint8Array, options?: LoadOptions): Promise<Adapter>;
  /** Ends its threads and gives its memory back. */
  close(): void;
  encode(text: string, options?: { around?: boolean; special?: boolean }): number[];
  decode(ids: number[], options?: { special?: boolean }): string;
}

export class Adapter {
  private constructor();
  readonly model: Model;
  /** Its memory goes with its last session. */
  free(): void;
}

export class Session {
  private constructor();
  readonly model: Model;
  readonly ids: number[];
  readonly cached: number;
  /** Of the last generation. */
  readonly result: Result | null;
  generate(prompt: string | number[] | null, options?: GenerateOptions): AsyncGenerator<Token, void, void>;
  fork(): Session;
  free(): void;
  truncate(length: number): void;
  seed(seed: number | bigint): void;
  /** A file that Python's session.load and edgedec_session_load read. */
  save(): Uint8Array;
  load(saved: Uint8Array): void;
  append(more: string | number[]): void;
  prefill(prompt: string | number[]): void;
  step(token: number): void;
  logits(): Float32Array | null;
  score(ids: number[]): number[];
}

export function open(source: string | URL | ArrayBuffer | Uint8Array, options?: OpenOptions): Promise<Model>;
/** Generations of one model that share their forward calls; each has the tokens that it has alone. */
export function together(requests: Request[]): AsyncGenerator<{ index: number; token: Token }, void, void>;
/** Takes away what the browser's cache storage keeps of bundles. */
export function forget(source?: string | URL): Promise<void>;
/** Whether there are relaxed vectors here. */
export function relaxed(): boolean;
