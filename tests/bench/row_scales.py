"""Two bundles of one model in turns on one thread: the median of the first one's processor time over the second's, for
calls of many rows, and of a text encoder for texts of as many tokens, 16 at a time.

    edgedec export CHECKPOINT --weights int8 --block 32 -o blocks
    edgedec export CHECKPOINT --weights int8 --block row -o rows
    python tests/bench/row_scales.py blocks rows --rows 1,8,16,64,256
    python tests/bench/row_scales.py blocks rows --texts FILE    # of an encoder: cosines to floats, a text a line
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import process_time

import numpy as np

import edgedec
from edgedec.bundle import Bundle
from edgedec.encoding.runner import TextRunner
from edgedec.encoding.texts import EncodedText
from edgedec.runtime import Rows, RuntimeOptions, logits_of, open_runtime


def runs(folder: str) -> Callable[[int], float]:
    """Seconds of processor time that a call of so many rows takes, or 16 texts."""
    bundle = Bundle.open(folder)
    runtime, rng = open_runtime("native", bundle, RuntimeOptions(threads=1)), np.random.default_rng(1)
    runner = None if bundle.manifest.encoder is None else TextRunner(bundle, runtime)

    def run(rows: int) -> float:
        ids = [rng.integers(0, bundle.spec.vocab_size, rows).tolist() for _ in range(16 if runner else 1)]
        cache = None if runner else runtime.new_cache(rows)
        began = process_time()
        if cache is not None:
            logits_of(runtime, Rows.chain(ids[0], 0), cache)
        elif runner is not None:
            list(runner.hidden([EncodedText(text, [0] * rows) for text in ids]))
        return process_time() - began

    return run


def cosines(folders: list[str], texts: list[str]) -> None:
    """Of the embeddings of each bundle to those of the first one's weights with float activations."""
    floats = edgedec.open(folders[0], engine="reference").embed(texts)
    for folder in folders:
        found = edgedec.open(folder, engine="native").embed(texts)
        sizes = np.linalg.norm(found, axis=1) * np.linalg.norm(floats, axis=1)
        each = (found * floats).sum(axis=1) / sizes
        print(f"{folder}: {len(texts)} texts, cosine {each.mean():.4f}, least {each.min():.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", nargs=2)
    parser.add_argument("--rows", default="1,16,128")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--texts", type=Path)
    given = parser.parse_args()
    if given.texts:
        return cosines(given.bundles, given.texts.read_text("utf-8").splitlines())
    first, second = map(runs, given.bundles)
    for rows in map(int, given.rows.split(",")):
        first(rows), second(rows)
        both = [(first(rows), second(rows)) for _ in range(given.rounds)]
        ratios = sorted(a / b for a, b in both)
        middle = f"{ratios[len(ratios) // 4]:.2f} to {ratios[-1 - len(ratios) // 4]:.2f}"
        print(f"{rows:4} rows: {1e3 * median(a for a, _ in both):8.2f} ms, {median(ratios):.2f} ({middle})")


if __name__ == "__main__":
    main()
