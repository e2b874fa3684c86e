"""One step of many texts beside one step of one: what a batch gains, and what a common prefix does.

    python tests/bench/batch_steps.py nano --texts 16 --context 128 --kv int8
    python tests/bench/batch_steps.py smollm-135m --texts 16 --context 512

Takes turns between a call of one row, of one row of each text, and of the same texts on one copy of their cache;
prints one JSON object: medians in milliseconds with quartiles, tokens a second over one text, and cache bytes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import edgedec
from edgedec.cache import Cache
from edgedec.cli.bench._flags import padded
from edgedec.runtime import Call, Outputs, Rows, Runtime, forward_one

BEST = Outputs(top=1)


def read(runtime: Runtime, ids: list[int], room: int) -> Cache:
    cache = runtime.new_cache(room)
    while rows := ids[cache.length :][:128]:
        forward_one(runtime, Call(Rows.chain(rows, cache.length), cache))
        cache.commit(range(len(rows)))
    return cache


def copy(runtime: Runtime, cache: Cache, room: int, shared: bool) -> Cache:
    if shared:
        return cache.fork(capacity=room)
    twin = runtime.new_cache(room)
    twin.load(cache.save())
    return twin


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def spread(seconds: list[float]) -> dict[str, float]:
    low, _, high = statistics.quantiles(seconds, n=4)
    return {"median": 1000 * statistics.median(seconds), "quartiles": [1000 * low, 1000 * high]}  # type: ignore[dict-item]


def measure(model: edgedec.Model, texts: int, context: int, turns: int) -> dict[str, Any]:
    runtime, room = model.runtime, context + 8
    vocab, rng = model.spec.vocab_size, np.random.default_rng(0)
    cache = read(runtime, rng.integers(3, vocab, context).tolist(), room)
    own = [copy(runtime, cache, room, False) for _ in range(texts)]
    common = [copy(runtime, cache, room, True) for _ in range(texts)]
    tokens = rng.integers(3, vocab, texts).tolist()

    def step(caches: list[Cache]) -> list[int]:
        calls = [Call(Rows.chain([t], context), c, outputs=BEST) for t, c in zip(tokens, caches, strict=False)]
        return [int(result.ids[0, 0]) for result in runtime.forward(calls) if result.ids is not None]

    assert step(own) == step(common)
    kinds = {"one text": own[:1], "own caches": own, "one cache": common}
    taken: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(turns):
        for kind, caches in kinds.items():
            step(caches)  # the turn before had other things in the caches of the CPU
            taken[kind] += [timed(lambda: step(caches)) for _ in range(4)]  # noqa: B023
    base = statistics.median(taken["one text"])
    return {
        "ms": {kind: spread(seconds) for kind, seconds in taken.items()},
        "tokens over one text": {k: len(kinds[k]) * base / statistics.median(s) for k, s in taken.items()},
        "cache bytes": {"own": sum(c.nbytes for c in own), "one": cache.nbytes},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    for name, default in (("texts", 16), ("context", 128), ("threads", 0), ("turns", 15)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--kv", default="int8")
    asked = parser.parse_args()
    name = asked.model
    path = name if name == "nano" else str(padded("nano", name, lambda *_: None).path)
    model = edgedec.open(path, threads=asked.threads, kv=asked.kv, prefix_tokens=0)
    print(json.dumps({**vars(asked), **measure(model, asked.texts, asked.context, asked.turns)}, indent=1))


if __name__ == "__main__":
    main()
