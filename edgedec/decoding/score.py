"""What a model says of a text without generating: the next token's distribution, log-probabilities of given tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from edgedec.cache import Cache
from edgedec.decoding.context import Context
from edgedec.errors import UsageError
from edgedec.runtime import ALL_LOGITS, Call, Logits, Rows, Runtime, forward_one
from edgedec.sampling import logprob


def next_probs(runtime: Runtime, context: Context) -> NDArray[np.float64]:
    """The distribution of the token after `context.ids` [vocab_size]."""
    prefill(runtime, context)
    logits = _logits(runtime, context, context.ids[-1:], context.cache)[0].astype(np.float64)
    context.cache.rollback()
    p = np.exp(logits - logits.max())
    return cast("NDArray[np.float64]", p / p.sum())


def score(runtime: Runtime, context: Context, ids: Sequence[int]) -> list[float]:
    """The log-probability of each of `ids` after `context.ids` and those before it."""
    found = list[float]()
    if not ids:
        return found
    prefill(runtime, context)
    twin, rows, chunk = context.cache.fork(), [context.ids[-1], *ids[:-1]], runtime.capabilities.prefill_chunk
    for at in range(0, len(rows), chunk):
        part = rows[at : at + chunk]
        logits = _logits(runtime, context, part, twin)
        found += [logprob(row, token) for row, token in zip(logits, ids[at:], strict=False)]
        twin.commit(range(len(part)))
    return found


def prefill(runtime: Runtime, context: Context) -> None:
    """Read all of a text but its last token, so that its cache is as after generating."""
    ids, cache, chunk = context.ids, context.cache, runtime.capabilities.prefill_chunk
    if not ids:
        raise UsageError("nothing to continue: give at least one token (this tokenizer adds none of its own)")
    if cache.length >= len(ids):
        cache.truncate(len(ids) - 1)
    while cache.length < len(ids) - 1:
        rows = Rows.chain(ids[cache.length : -1][:chunk], cache.length)
        runtime.forward([Call(rows, cache, adapter=context.adapter)])
        cache.commit(range(len(rows)))


def _logits(runtime: Runtime, context: Context, ids: Sequence[int], cache: Cache) -> Logits:
    """Logits [n, vocab_size] of tokens after those that a cache holds."""
    call = Call(Rows.chain(ids, cache.length), cache, outputs=ALL_LOGITS, adapter=context.adapter)
    logits = forward_one(runtime, call).logits
    assert logits is not None
    return logits
