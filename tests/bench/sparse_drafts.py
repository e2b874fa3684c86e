"""What drafting with a view of the cache is worth after long contexts, by the time of its calls.

    python tests/bench/sparse_drafts.py BUNDLE [TOKENS,TOKENS] [KV,KV] [THREADS]

A bundle is one that `edgedec bench cache --as` made. After each context, in each cache format: a step; a step of a view
of 12 pages (what `--spec sparse` drafts with, but with the whole vocabulary, where it reads a part); a call of 7 rows.
All take turns. How much faster 6 drafted rows are, if so many tokens come of a call: the step's time times these tokens
over that of 6 views and the call.
"""

from __future__ import annotations

import sys
from statistics import median
from time import perf_counter

import numpy as np

from edgedec.bench.cache_filled import filled
from edgedec.bundle.folder import Bundle
from edgedec.cache import Cache
from edgedec.runtime import ALL_LOGITS, Call, Outputs, Rows, Runtime, RuntimeOptions, View, forward_one, open_runtime

TURNS, DRAFTED, PER_CALL = 9, 6, (4.0, 5.2, 5.9)


def main(path: str, contexts: list[int], formats: list[str], threads: int) -> None:
    bundle = Bundle.open(path)
    for kv in formats:
        runtime = open_runtime("native", bundle, RuntimeOptions(threads=threads, kv=kv))
        for n in contexts:
            step, view, call = (1e3 * median(times) for times in measured(runtime, n))
            gains = [f"{k}: {k * step / (DRAFTED * view + call):.2f}" for k in PER_CALL]
            print(
                f"{kv:5} {n:6}: step {step:6.1f} ms, view {view:5.1f} ms, {DRAFTED + 1} rows {call:6.1f} ms "
                f"({call / step:.2f} steps); faster by tokens a call: {', '.join(gains)}",
                flush=True,
            )


def measured(runtime: Runtime, n: int) -> list[list[float]]:
    """Seconds of a step, of a step of a view, and of a call of all drafted rows."""
    cache = filled(runtime, n + 16, n)
    view = dict.fromkeys(runtime.spec.attention, View(sinks=64, recent=128, pages=12))
    best = Outputs(top=2, logsum=True)
    whole = [Call(chain(runtime, k, n), cache, outputs=ALL_LOGITS) for k in (1, DRAFTED + 1)]
    calls = [whole[0], Call(chain(runtime, 1, n), cache, outputs=best, views=view), whole[1]]
    times: list[list[float]] = [[], [], []]
    for turn in range(TURNS + 1):
        for call, into in zip(calls, times, strict=True):
            into += [seconds(runtime, call, cache)] if turn else []
            seconds(runtime, call, cache)
    return times


def chain(runtime: Runtime, k: int, n: int) -> Rows:
    return Rows.chain(np.random.default_rng(k).integers(0, runtime.spec.vocab_size, k), n)


def seconds(runtime: Runtime, call: Call, cache: Cache) -> float:
    began = perf_counter()
    forward_one(runtime, call)
    taken = perf_counter() - began
    cache.rollback()
    return taken


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(
        sys.argv[1],
        [int(part) for part in (sys.argv[2] if len(sys.argv) > 2 else "8192,32768").split(",")],
        (sys.argv[3] if len(sys.argv) > 3 else "f32,int8").split(","),
        int(sys.argv[4]) if len(sys.argv) > 4 else 2,
    )
