/** The second engine: ONNX Runtime's, greedy. */
export class OrtModel {
  private constructor();
  readonly name: string;
  readonly eos: number[];
  generate(prompt: number[], options?: { maxTokens?: number }): AsyncGenerator<{ id: number; drafted: false }, void, void>;
  release(): Promise<void>;
}
export function openOrt(
  source: string | URL,
  options: {
    ort: unknown;
    provider?: "wasm" | "webgpu";
    cache?: boolean;
    onProgress?: (done: number, total: number) => void;
  },
): Promise<OrtModel>;
