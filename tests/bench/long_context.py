"""The cost of a step of one row after a long context, in each cache format.

    python tests/bench/long_context.py BUNDLE [TOKENS]

Caches take turns in one process, 2 threads.
"""

from __future__ import annotations

import sys
from statistics import median
from time import perf_counter

import numpy as np

from edgedec.bundle.folder import Bundle
from edgedec.cache import Cache
from edgedec.runtime import Call, Rows, Runtime, RuntimeOptions, forward_one, logits_of, open_runtime
from edgedec.spec import KV_FORMATS

CHUNK, TURNS = 128, 25


def main(path: str, tokens: int) -> None:
    bundle = Bundle.open(path)
    runtimes = {kv: open_runtime("native", bundle, RuntimeOptions(threads=2, kv=kv)) for kv in KV_FORMATS}
    caches = {kv: filled(runtime, tokens) for kv, runtime in runtimes.items()}
    times: dict[str, list[float]] = {kv: [] for kv in runtimes}
    for _ in range(TURNS):
        for kv, runtime in runtimes.items():
            began = perf_counter()
            logits_of(runtime, Rows.chain([1], caches[kv].length), caches[kv])
            times[kv].append((perf_counter() - began) * 1e3)
    for kv, ms in times.items():
        ratio = median(ms) / median(times["f32"])
        print(f"{kv:5} {median(ms):.1f} ms ({min(ms):.1f} to {max(ms):.1f}), {ratio:.2f} of f32")


def filled(runtime: Runtime, tokens: int) -> Cache:
    cache = runtime.new_cache(tokens + 1)
    ids = np.random.default_rng(0).integers(0, runtime.spec.vocab_size, tokens)
    for at in range(0, tokens, CHUNK):
        rows = Rows.chain(ids[at : at + CHUNK], at)
        forward_one(runtime, Call(rows, cache))
        cache.commit(range(len(rows)))
    return cache


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 8176)
