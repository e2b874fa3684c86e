"""What does a step of one row cost behind a long context, in each cache format?

    python tests/bench/long_context.py BUNDLE [TOKENS]

Caches take turns in one process, 2 threads. What is cached is sixteen tokens over and over: the bytes are what costs.
"""

from __future__ import annotations

import sys
from statistics import median
from time import perf_counter

import numpy as np

from edgedec.bundle.folder import Bundle
from edgedec.cache.host import Cache
from edgedec.runtime.core import Runtime, RuntimeOptions, forward, open_runtime
from edgedec.runtime.rows import Rows
from edgedec.spec import KV_FORMATS

BLOCK, TURNS = 16, 25


def main(path: str, tokens: int) -> None:
    bundle = Bundle.open(path)
    runtimes = {kv: open_runtime("native", bundle, RuntimeOptions(threads=2, kv=kv)) for kv in KV_FORMATS}
    caches = {kv: filled(runtime, tokens) for kv, runtime in runtimes.items()}
    times: dict[str, list[float]] = {kv: [] for kv in runtimes}
    for _ in range(TURNS):
        for kv, runtime in runtimes.items():
            began = perf_counter()
            forward(runtime, Rows.chain([1], caches[kv].length), caches[kv])
            times[kv].append((perf_counter() - began) * 1e3)
    for kv, ms in times.items():
        ratio = median(ms) / median(times["f32"])
        print(f"{kv:5} {median(ms):.1f} ms ({min(ms):.1f} to {max(ms):.1f}), {ratio:.2f} of f32")


def filled(runtime: Runtime, tokens: int) -> Cache:
    cache = runtime.new_cache(tokens + BLOCK)
    ids = np.random.default_rng(0).integers(0, runtime.spec.vocab_size, BLOCK)
    forward(runtime, Rows.chain(ids, 0), cache)
    cache.load(np.tile(cache.data[:, :, :, :BLOCK], (1, 1, 1, tokens // BLOCK, 1)))
    return cache


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 8176)
