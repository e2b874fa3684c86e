"""Scoring without generation: the next token's distribution, and log-probabilities of given tokens."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import cast

import numpy as np
from numpy.typing import NDArray

from edgedec.cache import Cache
from edgedec.decoding.apply_policy import settle
from edgedec.decoding.context import Context
from edgedec.decoding.messages import Completed, DecodeLoop, ForkLoop, Request, Stats, Token
from edgedec.decoding.reading import read_source
from edgedec.decoding.runner import run_requests
from edgedec.errors import UsageError
from edgedec.runtime import ALL_LOGITS, Call, Logits, Rows, Runtime, forward_one
from edgedec.sampling import logprob, top_logprobs

# Logits of a call that scores a prompt: 32 MiB in float32.
_MOST_LOGITS = 8 << 20


def next_probs(runtime: Runtime, context: Context) -> NDArray[np.float64]:
    """The distribution of the token after `context.ids` [vocab_size]."""
    context.suit()
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
    context.suit(len(context.ids) + len(ids) - 1)
    prefill(runtime, context)
    if context.policy is not None:
        return _score_step_by_step(runtime, context.fork(), ids)
    twin, rows, chunk = context.cache.fork(), [context.ids[-1], *ids[:-1]], runtime.capabilities.prefill_chunk
    for at in range(0, len(rows), chunk):
        part = rows[at : at + chunk]
        logits = _logits(runtime, context, part, twin)
        found += [logprob(row, token) for row, token in zip(logits, ids[at:], strict=False)]
        twin.commit(range(len(part)))
    return found


def _score_step_by_step(runtime: Runtime, context: Context, ids: Sequence[int]) -> list[float]:
    """As `score`, with the text growing as if it were generated, because what a row attends to depends on the policy's
    earlier decisions. Changes the context."""
    policy, found = context.policy, list[float]()
    assert policy is not None
    while len(found) < len(ids):
        prefill(runtime, context)
        n = min(1 + policy.room(context.cache.length), runtime.capabilities.prefill_chunk, len(ids) - len(found))
        following = ids[len(found) : len(found) + n]
        rows = Rows.chain([context.ids[-1], *following[:-1]], context.cache.length)
        call = policy.shape(Call(rows, context.cache, outputs=ALL_LOGITS, adapter=context.adapter))
        result = forward_one(runtime, call)
        assert result.logits is not None
        found += [logprob(row, token) for row, token in zip(result.logits, following, strict=True)]
        context.cache.commit(range(n))
        policy.observe(context.cache, result)
        context.ids += following
    return found


def scored(
    loop: DecodeLoop | ForkLoop,
    context: Context,
    stats: Stats,
    chunk: int,
    top: int,
    on_scores: Callable[[list[Token]], None],
) -> ForkLoop:
    """The loop, after its prompt has been scored."""
    on_scores((yield from score_prompt(context, chunk, top)))
    try:
        yield from loop
    finally:
        stats.cached = 0


def score_prompt(context: Context, chunk: int, top: int) -> Generator[Call, Completed, list[Token]]:
    """The prompt's tokens, each but the first with its log-probability after those before it and with the `top`
    likeliest; the cache then is as after generating. Yields the calls that it needs.

    Every row is computed again, because a cached row has no logits.
    """
    ids, cache = context.ids, context.cache
    if context.policy is not None:
        raise UsageError("a prompt's own log-probabilities are of the whole cache: ask for none, or go without --cache")
    if not ids:
        raise UsageError("nothing to score: give at least one token (this tokenizer adds none of its own)")
    if context.together:
        raise UsageError("a prompt's own log-probabilities: tokens that see each other have none")
    size = max(1, min(chunk, _MOST_LOGITS // cache.spec.vocab_size))
    found = [Token(ids[0])]
    cache.truncate(0)
    context.suit()
    while cache.length < len(ids) - 1:
        start = cache.length
        rows = Rows.chain(ids[start:-1][: context.chunk(size)], start)
        completed = yield Call(rows, cache, outputs=ALL_LOGITS, adapter=context.adapter)
        logits = completed.result.logits
        assert logits is not None
        scored = zip(ids[start + 1 : start + 1 + len(rows)], logits, strict=True)
        found += [Token(token, logprob(row, token), tuple(top_logprobs(row, top))) for token, row in scored]
        cache.commit(range(len(rows)))
    return found


def prefill(runtime: Runtime, context: Context) -> None:
    """Read all of a text but its last token, so that its cache is as after generating."""
    ids, cache, can = context.ids, context.cache, runtime.capabilities
    if not ids:
        raise UsageError("nothing to continue: give at least one token (this tokenizer adds none of its own)")
    if context.policy is not None:
        return drive(runtime, settle(context, can.prefill_chunk))
    if cache.length >= len(ids):
        cache.truncate(len(ids) - 1)
    drive(runtime, read_source(context))
    while cache.length < len(ids) - 1:
        rows = Rows.chain(ids[cache.length : -1][: can.chunk(cache.length)], cache.length)
        runtime.forward([Call(rows, cache, adapter=context.adapter)])
        cache.commit(range(len(rows)))


def drive(runtime: Runtime, reading: Generator[Request, Completed, None]) -> None:
    """Run the calls that a generator yields."""
    with suppress(StopIteration):
        request = next(reading)
        while True:
            request = reading.send(run_requests(runtime, [request])[0])


def _logits(runtime: Runtime, context: Context, ids: Sequence[int], cache: Cache) -> Logits:
    """Logits [n, vocab_size] of tokens after those that a cache holds."""
    call = Call(Rows.chain(ids, cache.length), cache, outputs=ALL_LOGITS, adapter=context.adapter)
    logits = forward_one(runtime, call).logits
    assert logits is not None
    return logits
