"""Log-probabilities of given tokens after many texts, in one batch: used by evaluations."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

from edgedec.decoding.context import Context
from edgedec.decoding.messages import Completed, DecodeLoop, Token
from edgedec.decoding.scheduler.batch import Batch, Job
from edgedec.decoding.sharing import SharedPrefixes
from edgedec.errors import UsageError
from edgedec.runtime import ALL_LOGITS, Call, Rows, Runtime
from edgedec.sampling import logprob


class Scored(NamedTuple):
    """The log-probability of given tokens after a text, and whether each of them is the likeliest."""

    logprob: float
    greedy: bool


def score_all(
    runtime: Runtime,
    texts: Sequence[tuple[Sequence[int], Sequence[int]]],
    most: int = 64,
    prefixes: SharedPrefixes | None = None,
    progress: Callable[[], None] = lambda: None,
) -> list[Scored]:
    """The scores of each (text, tokens): of the tokens after the text, which has at least one token.

    At most `most` of them run together; a common prefix of several texts is read once."""
    batch = Batch(runtime, most=most, prefixes=prefixes)
    found: list[Scored | None] = [None] * len(texts)
    jobs = [_add_scoring(batch, runtime, i, *pair, found, progress) for i, pair in enumerate(texts)]
    batch.run()
    for job in jobs:
        if job.error is not None:
            raise job.error
    return [one for one in found if one is not None]


def _add_scoring(
    batch: Batch,
    runtime: Runtime,
    i: int,
    text: Sequence[int],
    ids: Sequence[int],
    found: list[Scored | None],
    progress: Callable[[], None],
) -> Job:
    """A job that writes its result to `found[i]` when it ends."""
    if not text:
        raise UsageError("nothing to score after: give at least one token")
    need = len(text) + max(len(ids) - 1, 0)
    context = Context(list(text), len(text), runtime.new_cache(need))

    def read() -> DecodeLoop:
        found[i] = yield from _score_loop(context, list(ids), runtime.capabilities.prefill_chunk)

    return batch.add(context, read(), lambda token: progress() if token is None else None, need, shares=True)


def _score_loop(context: Context, ids: list[int], chunk: int) -> Generator[Call | Token, Completed, Scored]:
    """Read the text, then the tokens; both stand in the context at the end."""
    cache, total, greedy, at = context.cache, 0.0, True, 0
    start = len(context.ids) - 1
    while cache.length < start:
        rows = Rows.chain(context.ids[cache.length : start][:chunk], cache.length)
        yield Call(rows, cache, adapter=context.adapter)
        cache.commit(range(len(rows)))
    last = [context.ids[-1], *ids[:-1]] if ids else []
    while at < len(last):
        part = last[at : at + chunk]
        completed = yield Call(Rows.chain(part, cache.length), cache, outputs=ALL_LOGITS, adapter=context.adapter)
        assert completed.result.logits is not None
        for row, token in zip(completed.result.logits, ids[at:], strict=False):
            total += logprob(row, token)
            greedy = greedy and int(row.argmax()) == token
        cache.commit(range(len(part)))
        at += len(part)
    context.ids += ids[:-1]
    return Scored(total, greedy)
