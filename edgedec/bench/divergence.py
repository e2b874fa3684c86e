"""How far a model's next-token distributions lie from another's, on a text.

The text is read in windows, each by itself. Every window's logits of the first model are compared with the second's, a
few rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UsageError
from edgedec.runtime import Call, Logits, Outputs, Rows, Runtime, forward_one

_LOGITS = 4 << 20  # values of logits of one call
_QUANTILE = 0.99


@dataclass(frozen=True)
class Divergence:
    """Of `tokens` tokens, the first model's beside the reference's. kl: nats a token, mean and 99th percentile; top1:
    the share of equal likeliest tokens; perplexity, reference: of both."""

    tokens: int
    kl: float
    kl_99: float
    top1: float
    perplexity: float
    reference: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def divergence(
    runtime: Runtime,
    reference: Runtime,
    ids: Sequence[int],
    window: int,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> Divergence:
    """`runtime` beside `reference`, two models of one vocabulary, on a text in windows of so many tokens."""
    _check(runtime, reference, ids, window)
    found = [np.zeros(0)] * 4
    for at in range(0, len(ids), window):
        text = ids[at : at + window]
        parts = [_compared(*pair) for pair in zip(_rows(runtime, text), _rows(reference, text), strict=True)]
        found = [np.concatenate([old, *new]) for old, new in zip(found, zip(*parts, strict=True), strict=True)]
        progress(min(at + window, len(ids)), len(ids))
    kl, same, own, theirs = found
    return Divergence(
        len(kl),
        float(kl.mean()),
        float(np.quantile(kl, _QUANTILE)),
        float(same.mean()),
        float(np.exp(own.mean())),
        float(np.exp(theirs.mean())),
    )


def _rows(runtime: Runtime, ids: Sequence[int]) -> Iterator[tuple[Logits, NDArray[np.int64]]]:
    """Logits of some rows and the tokens that follow them, through a text."""
    cache = runtime.new_cache(len(ids))
    size = max(1, min(32, _LOGITS // runtime.spec.vocab_size, runtime.capabilities.prefill_chunk))
    for at in range(0, len(ids), size):
        rows = Rows.chain(ids[at : at + size], at)
        logits = forward_one(runtime, Call(rows, cache, outputs=Outputs(logits=True))).logits
        assert logits is not None
        cache.commit(range(len(rows)))
        yield logits, np.asarray(ids[at + 1 : at + 1 + len(rows)], np.int64)


def _compared(own: tuple[Logits, Any], theirs: tuple[Logits, Any]) -> tuple[NDArray[np.float64], ...]:
    """Of some rows the divergence, whether the likeliest tokens are equal, and of those with a following token its
    negative log-likelihood by both."""
    following = own[1]
    p, q = log_softmax(theirs[0]), log_softmax(own[0])
    places = np.arange(len(following)), following
    kl = (np.exp(p) * (p - q)).sum(axis=1)
    return kl, (p.argmax(axis=1) == q.argmax(axis=1)).astype(float), -q[places], -p[places]


def log_softmax(x: Logits) -> NDArray[np.float64]:
    """Over the last axis."""
    shifted = x.astype(np.float64) - x.max(axis=-1, keepdims=True)
    found: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return found


def _check(runtime: Runtime, reference: Runtime, ids: Sequence[int], window: int) -> None:
    one, other = runtime.spec, reference.spec
    if one.vocab_size != other.vocab_size:
        raise UsageError(f"vocabularies of {one.vocab_size} and {other.vocab_size} tokens: the models do not compare")
    limit = min(one.context_length, other.context_length)
    if not 2 <= window <= limit:
        raise UsageError(f"window {window}: must be from 2 to {limit}, the models' limit")
    if len(ids) < 2:
        raise UsageError(f"a text of {len(ids)} tokens: a divergence needs at least 2")
    if not 0 <= min(ids) <= max(ids) < one.vocab_size:
        raise UsageError(f"token {min(ids)} to {max(ids)}: outside the vocabulary of {one.vocab_size}")
