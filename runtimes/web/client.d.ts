/** The same with the engine in a worker: every call is awaited. */
import type { GenerateOptions, LoadOptions, OpenOptions, Result, SessionOptions, Token } from "./edgedec.js";
export { EdgedecError } from "./edgedec.js";

export class RemoteModel {
  private constructor();
  readonly name: string;
  readonly isa: string;
  readonly kv: string;
  readonly threads: number;
  readonly digest: string;
  readonly chatTemplate: string;
  readonly noText: string;
  readonly vocabSize: number;
  readonly contextLength: number;
  readonly weightsBytes: number;
  session(options?: Omit<SessionOptions, "adapter"> & { adapter?: RemoteAdapter }): Promise<RemoteSession>;
  adapter(source: string | URL | ArrayBuffer | Uint8Array, options?: Omit<LoadOptions, "signal">): Promise<RemoteAdapter>;
  encode(text: string, options?: { around?: boolean; special?: boolean }): Promise<number[]>;
  decode(ids: number[], options?: { special?: boolean }): Promise<string>;
  memory(): Promise<{ cache: number; prefixes: number; sessions: number; total: number }>;
  /** Ends the worker. */
  close(): void;
}

export class RemoteAdapter {
  private constructor();
  free(): Promise<void>;
}

export class RemoteSession {
  private constructor();
  readonly result: Result | null;
  generate(prompt: string | number[] | null, options?: GenerateOptions): AsyncGenerator<Token, void, void>;
  fork(): Promise<RemoteSession>;
  free(): Promise<void>;
  ids(): Promise<number[]>;
  cached(): Promise<number>;
  save(): Promise<Uint8Array>;
  load(saved: Uint8Array): Promise<void>;
  truncate(length: number): Promise<void>;
  seed(seed: number | bigint): Promise<void>;
  append(more: string | number[]): Promise<void>;
  prefill(prompt: string | number[]): Promise<void>;
  step(token: number): Promise<void>;
  logits(): Promise<Float32Array | null>;
  score(ids: number[]): Promise<number[]>;
}

export function open(
  source: string | URL | ArrayBuffer | Uint8Array,
  options?: Omit<OpenOptions, "signal"> & { worker?: Worker },
): Promise<RemoteModel>;
