"""How much likelier one model finds the tokens of a prompt than another one does."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np

from edgedec.decoding.context import Context
from edgedec.decoding.messages import Completed, ForwardOn, Request
from edgedec.fusion._base import log_softmax
from edgedec.fusion._source import Source
from edgedec.runtime import ALL_LOGITS, Call, Logits, Rows


def prompt_gaps(
    context: Context, one: Source, other: Source
) -> Generator[Sequence[Request], Sequence[Completed], list[float]]:
    """log(p / p') of the prompt's tokens from the second on, read with both in caches of their own."""
    ids, found = context.ids[: context.n_prompt], list[float]()
    caches = [source.runtime.new_cache(len(ids)) for source in (one, other)]
    size = min(source.runtime.capabilities.chunk(len(ids)) for source in (one, other))
    for start in range(0, len(ids) - 1, size):
        rows = Rows.chain(ids[start : min(start + size, len(ids) - 1)], start)
        requests = list[Request]()
        for source, cache in zip((one, other), caches, strict=True):
            call = Call(rows, cache, outputs=ALL_LOGITS, adapter=source.adapter_of(context))
            requests.append(call if source.own else ForwardOn(source.runtime, call))
        pair = [done.result.logits for done in (yield requests)]
        for cache in caches:
            cache.commit(range(len(rows)))
        found += _gaps(pair, ids[start + 1 : start + 1 + len(rows)])
    return found


def _gaps(pair: Sequence[Logits | None], tokens: Sequence[int]) -> list[float]:
    """Of each token, after each row."""
    one, other = pair
    assert one is not None
    assert other is not None
    found = (log_softmax(a)[t] - log_softmax(b)[t] for a, b, t in zip(one, other, tokens, strict=True))
    return [float(gap) if np.isfinite(gap) else 0.0 for gap in found]
