"""What zero points cost: steps of the same random weights with and without them, in turns, in one process.

    python tests/bench/zero_points.py [--layers 4] [--threads 1] [--rounds 40] [--isa avx2] [--rows 1,4] [--only int4]

The geometry is that of Llama-3.2-1B, with fewer layers and without its vocabulary.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

from edgedec.bundle import Bundle
from edgedec.bundle.manifest import Text
from edgedec.export.quantize import Format
from edgedec.export.weights import Kept
from edgedec.export.writer import Add, BundleWriter, Contents
from edgedec.runtime import Rows, RuntimeOptions, logits_of, open_runtime
from edgedec.spec import Attention, Mlp, ModelSpec, Rope

VOCAB = 2048
KINDS: tuple[tuple[Format, int], ...] = (("int4", 32), ("int4", 64), ("int4", 128), ("int8", 32), ("int8", 128))


def spec(layers: int) -> ModelSpec:
    """Llama-3.2-1B, fewer layers."""
    attention = Attention(n_heads=32, n_kv_heads=8, head_dim=64, scale=0.125)
    rope = Rope(tuple(5e5 ** (-i / 32) for i in range(32)))
    return ModelSpec("llama", VOCAB, 2048, 1024, ((attention, Mlp(8192)),) * layers, 1e-5, True, (rope,))


def bundle(folder: Path, layers: int, fmt: Format, block: int, zeros: bool) -> Bundle:
    """Random integers; with zero points or without, the data and scales are the same."""
    made, rng = spec(layers), np.random.default_rng(0)

    def rows(n: int, k: int) -> Any:
        bytes_ = block // 2 if fmt == "int4" else block
        most, usual = (16, 8) if fmt == "int4" else (256, 128)
        scales = np.full((n, k // block), 1.5 / k**0.5 / usual, np.float16)
        data = rng.integers(0, 256, (n, k // block, bytes_), np.uint8)
        return data, scales, rng.integers(0, most, scales.shape, np.uint8) if zeros else None

    def fill(add: Add) -> dict[str, Any]:
        for name, shape in made.tensors().items():
            add(name, floats(shape), Kept(fmt, block, of(shape[-1])) if name in made.matrices - {"embed"} else None)
        return {}

    def of(k: int) -> Any:
        return lambda start, stop: rows(stop - start, k)

    def floats(shape: tuple[int, ...]) -> Any:
        if len(shape) == 1:
            return lambda start, stop: np.ones(stop - start, np.float32)
        return lambda start, stop: rng.standard_normal((stop - start, shape[1]), np.float32)

    folder.mkdir()
    formats: dict[str, Any] = dict.fromkeys(("body", "head", "embed"), fmt)
    contents = Contents(folder.name, made, Text(None), formats, 32, ("f32",), runtimes=())
    BundleWriter(folder, contents).write(fill)
    return Bundle.open(folder)


def measure(bundles: list[Bundle], rows: int, threads: int, rounds: int) -> list[list[float]]:
    """Milliseconds of CPU time of a call of `rows` rows by each bundle, in turns."""
    runtimes = [open_runtime("native", one, RuntimeOptions(threads=threads)) for one in bundles]
    caches, times = [runtime.new_cache(512) for runtime in runtimes], [list[float]() for _ in runtimes]
    for turn in range(rounds + 3):
        for i in range(len(runtimes)) if turn % 2 else reversed(range(len(runtimes))):
            caches[i].rollback()
            began = process_time()
            logits_of(runtimes[i], Rows.chain([7] * rows, 0), caches[i])
            if turn >= 3:
                times[i].append(1000 * (process_time() - began))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in (("layers", 4), ("threads", 1), ("rounds", 40)):
        parser.add_argument(f"--{name}", type=int, default=value)
    for text, usual in (("isa", ""), ("only", ""), ("rows", "1,4,8,64")):
        parser.add_argument(f"--{text}", default=usual)
    options = parser.parse_args()
    if options.isa:
        os.environ["EDGEDEC_ISA"] = options.isa
    with tempfile.TemporaryDirectory() as folder:
        for fmt, block in KINDS:
            if options.only not in f"{fmt}-{block}":
                continue
            names = [Path(folder) / f"{fmt}-{block}-{with_}" for with_ in ("symmetric", "zeros")]
            bundles = [bundle(path, options.layers, fmt, block, i == 1) for i, path in enumerate(names)]
            for rows in map(int, options.rows.split(",")):
                plain, zeros = measure(bundles, rows, options.threads, options.rounds // (4 if rows > 8 else 1))
                ratio = np.array(zeros) / np.array(plain) - 1  # of neighbours in time
                low, median, high = np.percentile(ratio, [25, 50, 75])
                print(
                    f"{fmt} {block}, {rows} rows: {np.median(plain):.2f} and {np.median(zeros):.2f} ms: "
                    f"{median:+.1%} ({low:+.1%} to {high:+.1%})",
                    flush=True,
                )


if __name__ == "__main__":
    main()
