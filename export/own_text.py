"""Text that a model writes itself, to calibrate on where there is no other: samples at temperature 1."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle import Bundle
from edgedec.runtime import (
    ALL_LOGITS,
    Call,
    Rows,
    Runtime,
    RuntimeOptions,
    choose_runtime,
    forward_one,
    open_runtime,
)

Ids = NDArray[np.int64]
_TOGETHER = 32


def own_text(bundle: Bundle, tokens: int, length: int, threads: int = 0, seed: int = 0) -> tuple[Ids, ...]:
    """Texts of `length` tokens, at least `tokens` together. Each begins with the model's begin token; with a random one
    if it has none."""
    runtime = open_runtime(choose_runtime(bundle), bundle, RuntimeOptions(threads=threads))
    rng, found = np.random.default_rng(seed), list[Ids]()
    while len(found) * length < tokens:
        n = min(_TOGETHER, -(-tokens // length) - len(found))
        begin = bundle.manifest.text.bos
        first = rng.integers(0, bundle.spec.vocab_size, n) if begin is None else np.full(n, begin)
        found += _sampled(runtime, first, length, rng)
    return tuple(found)


def _sampled(runtime: Runtime, first: Ids, length: int, rng: np.random.Generator) -> list[Ids]:
    """A text after each of the first tokens."""
    texts = np.empty((len(first), length), np.int64)
    texts[:, 0] = first
    caches = [runtime.new_cache(length) for _ in first]
    for at in range(length - 1):
        calls = [
            Call(Rows.chain(text[at : at + 1], at), cache, outputs=ALL_LOGITS)
            for text, cache in zip(texts, caches, strict=True)
        ]
        together = runtime.capabilities.largest_call >= len(calls)
        results = runtime.forward(calls) if together else [forward_one(runtime, call) for call in calls]
        logits = np.concatenate([result.logits for result in results if result.logits is not None])
        texts[:, at + 1] = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
        for cache in caches:
            cache.commit(range(1))
    return list(texts)
