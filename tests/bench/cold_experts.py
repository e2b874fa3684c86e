"""Mixtures whose weights are not in memory: the first token and steps, libraries of the CPU engine in turns (Linux).

    python tests/bench/cold_experts.py make given OUT            # experts by domains: 16 layers of 7, int8, 2.6 GB
    python tests/bench/cold_experts.py make ordinary OUT         # 8 layers of 64 experts, 8 a row, int4, 1.9 GB
    python tests/bench/cold_experts.py run OUT LIBRARY LIBRARY   # --prompt 64 --tokens 12 --rounds 5

Weights are random, so any text is as good. Each run is a process that drops the file from memory before it opens it, so
nothing else may use it. Where memory is short: in a cgroup with a limit below the size of the file.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bundles import write_bundle

from edgedec.bundle import MANIFEST, Bundle
from edgedec.kernels.cpu.loader import OVERRIDE
from edgedec.runtime import Rows, RuntimeOptions, logits_of, open_runtime
from edgedec.spec import Attention, Block, ModelSpec, Moe, PreRouter, Rope
from edgedec.storage.serde import to_json

VOCAB, HIDDEN, CONTEXT = 32000, 2048, 2048
HEADS = Attention(32, 8, 64, 0.125, rope=0)
GIVEN = Moe(7, 1, 3072, router="given", normalize=False, given_by=0, shared_size=1024)
ROUTER = PreRouter(8, 8, 32, 1.0, rope=1, n_experts=7)
MODELS: dict[str, tuple[str, tuple[tuple[Block, ...], ...]]] = {
    "given": ("int8", ((ROUTER, HEADS, GIVEN), *[(HEADS, GIVEN)] * 15)),
    "ordinary": ("int4", ((HEADS, Moe(64, 8, 1024)),) * 8),
}


def rope(size: int) -> Rope:
    return Rope(tuple(1e4 ** (-np.arange(0, size, 2) / size)))


def make(model: str, out: Path) -> None:
    fmt, layers = MODELS[model]
    ropes = (rope(64), rope(32))[: 1 + (model == "given")]
    spec = ModelSpec(model, VOCAB, HIDDEN, CONTEXT, layers, 1e-5, True, ropes)
    rng, kept = np.random.default_rng(0), dict[str, np.ndarray]()
    values = rng.standard_normal(1 << 23, np.float32)

    def read(name: str) -> np.ndarray:
        shape = spec.tensors()[name]
        if name not in kept:
            kept.clear()  # a tensor is read in pieces, and is large
            rows = np.resize(np.roll(values, int(rng.integers(len(values)))), shape)
            spread = np.float32(1.5 / shape[-1] ** 0.5)
            kept[name] = rows * spread if len(shape) == 2 else np.full(shape, 1.0 - name.endswith("bias"), np.float32)
        return kept[name]

    bundle = write_bundle(out, spec, read, fmt)
    manifest = replace(bundle.manifest, kv_formats=("f32", "f16"))
    (out / MANIFEST).write_text(json.dumps(to_json(manifest)))
    with bundle.file(bundle.manifest.weights).open("rb") as file:
        os.fsync(file)  # pages that are not written yet are not dropped


def once(folder: Path, prompt: int, tokens: int) -> None:
    """Prints milliseconds and page faults of the first call, and of all steps."""
    bundle = Bundle.open(folder)
    with bundle.file(bundle.manifest.weights).open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    runtime = open_runtime("native", bundle, RuntimeOptions(kv="f16"))
    cache, rng, found = runtime.new_cache(prompt + tokens), np.random.default_rng(1), list[tuple[float, int]]()
    for rows in (prompt, *[1] * tokens):
        ids, faults = rng.integers(0, VOCAB, rows).tolist(), resource.getrusage(resource.RUSAGE_SELF).ru_majflt
        began = perf_counter()
        logits_of(runtime, Rows.chain(ids, cache.length), cache)
        seconds = perf_counter() - began
        found.append((1e3 * seconds, resource.getrusage(resource.RUSAGE_SELF).ru_majflt - faults))
        cache.commit(range(rows))
    steps = found[1:]
    print(json.dumps([*found[0], sum(ms for ms, _ in steps), sum(faults for _, faults in steps)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["make", "run", "once"])
    parser.add_argument("words", nargs="+")
    parser.add_argument("--prompt", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    if given.what == "make":
        return make(given.words[0], Path(given.words[1]))
    if given.what == "once":
        return once(Path(given.words[0]), given.prompt, given.tokens)
    folder, *libraries = given.words
    words = ["once", folder, "--prompt", given.prompt, "--tokens", given.tokens]
    found: dict[str, list[list[float]]] = {library: [] for library in libraries}
    for library in libraries * given.rounds:
        command = [sys.executable, __file__, *map(str, words)]
        done = subprocess.run(
            command, env={**os.environ, OVERRIDE: library}, check=True, capture_output=True, text=True
        )
        found[library].append(json.loads(done.stdout))
    for library, runs in found.items():
        first, faults, steps, later = (median(each) for each in zip(*runs, strict=True))
        print(f"{library}: first {first:.0f} ms, {faults:.0f} faults; {given.tokens} steps {steps:.0f} ms, {later:.0f}")


if __name__ == "__main__":
    main()
