"""What a call costs with weights of 4, 3 and 2 bits: the same geometry in each format, in turns, in one process.

    python tests/bench/low_bits.py [--layers 16] [--threads 2] [--rounds 30] [--rows 1,4,16,128] [--formats int4,mx4]

The geometry is that of Llama-3.2-1B (1.24 billion weights with all 16 layers and its vocabulary: --vocab 128256); the
integers are random. Prints milliseconds and the ratio to the first format: least of all rounds, and median.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import zero_points as shared

from edgedec.bundle import Bundle
from edgedec.bundle.integers import Integers, code_bytes
from edgedec.bundle.manifest import Text
from edgedec.export.weights import Kept
from edgedec.export.writer import Add, BundleWriter, Contents
from edgedec.runtime import Rows, RuntimeOptions, logits_of, open_runtime

FORMATS = "int4,int3,int2"
# How far the integers go.
REACH: dict[Integers, int] = {"int8": 128, "int4": 8, "int3": 4, "int2": 2, "int5": 16, "nl4": 128, "mx4": 12}


def bundle(folder: Path, layers: int, vocab: int, fmt: Integers) -> Bundle:
    """Random codes and scales that keep a row's size."""
    made, rng = replace(shared.spec(layers), vocab_size=vocab), np.random.default_rng(0)

    def kept(k: int) -> Kept:
        def rows(start: int, stop: int) -> Any:
            scales = np.full((stop - start, k // 32), 1.5 / k**0.5 / REACH[fmt], np.float16)
            return rng.integers(0, 256, (*scales.shape, code_bytes(fmt, 32)), np.uint8), scales, None

        return Kept(fmt, 32, rows)

    def floats(shape: tuple[int, ...]) -> Any:
        return lambda start, stop: np.ones((stop - start, *shape[1:]), np.float32)

    def fill(add: Add) -> dict[str, Any]:
        for name, shape in made.tensors().items():
            add(name, floats(shape), kept(shape[-1]) if name in made.matrices else None)
        return {}

    folder.mkdir()
    formats: dict[str, Any] = dict.fromkeys(("body", "head", "embed"), fmt)
    BundleWriter(folder, Contents(folder.name, made, Text(None), formats, 32, ("f32",), runtimes=())).write(fill)
    return Bundle.open(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--vocab", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--rows", default="1,4,16,128")
    parser.add_argument("--formats", default=FORMATS)
    args = parser.parse_args()
    formats = [next(one for one in REACH if one == fmt) for fmt in args.formats.split(",")]
    with tempfile.TemporaryDirectory() as place:
        bundles = [bundle(Path(place) / fmt, args.layers, args.vocab, fmt) for fmt in formats]
        runtimes = [open_runtime("native", one, RuntimeOptions(threads=args.threads)) for one in bundles]
        caches = [runtime.new_cache(1024) for runtime in runtimes]
        print(f"{'rows':>5}" + "".join(f"{fmt:>24}" for fmt in formats))
        for rows in map(int, args.rows.split(",")):
            times = measure(runtimes, caches, rows, args.rounds)
            cells = []
            for spent in times:
                least = min(spent) / min(times[0])
                usual = statistics.median(spent) / statistics.median(times[0])
                cells.append(f"{min(spent):10.2f} ms {least:5.2f} {usual:5.2f}")
            print(f"{rows:>5}" + "".join(f"{cell:>24}" for cell in cells), flush=True)


def measure(runtimes: list[Any], caches: list[Any], rows: int, rounds: int) -> list[list[float]]:
    """Milliseconds of a call of so many rows by each runtime, in turns, after two to warm up."""
    times = [list[float]() for _ in runtimes]
    for turn in range(rounds + 2):
        for i in range(len(runtimes)) if turn % 2 else reversed(range(len(runtimes))):
            caches[i].rollback()
            began = perf_counter()
            logits_of(runtimes[i], Rows.chain([7] * rows, 0), caches[i], rows - 1)
            if turn >= 2:
                times[i].append(1000 * (perf_counter() - began))
    return times


if __name__ == "__main__":
    main()
