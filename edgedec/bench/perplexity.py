"""Perplexity: how well a model predicts a text.

Windows of `window` tokens move on by `stride`; each scores only the tokens that no window before it
scored, so every token but the first is scored once, with at least window - stride tokens before it.

Worked example, 7 tokens, window 4, stride 2 (- read, x scored):

    0 1 2 3 4 5 6
    - x x x            the first token has nothing before it
        - - x x
            - - x

A text that begins with the model's begin token has it in front of every window (in one of its places):
some models predict nothing sensible without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UsageError
from edgedec.runtime import Call, Logits, Outputs, Rows, Runtime, forward_one

if TYPE_CHECKING:
    from edgedec.model import Model

_LOGITS = 8 << 20  # logits of one call: 64 rows of a vocabulary of 128k


@dataclass(frozen=True)
class Perplexity:
    """`nll`: nats, summed over the `tokens` that were scored."""

    nll: float
    tokens: int

    @property
    def mean(self) -> float:
        """Nats per token."""
        return self.nll / self.tokens

    @property
    def value(self) -> float:
        """exp(mean), infinite where that is beyond a float."""
        return exp(self.mean) if self.mean < 700 else float("inf")

    @property
    def bits(self) -> float:
        return self.nll / log(2)


def perplexity(
    model: Model,
    ids: Sequence[int],
    window: int,
    stride: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Perplexity:
    """Score ids[1:], each token given those before it in its window."""
    _check(model, ids, window, stride)
    begin = list(ids[:1]) if ids[0] == model.bundle.manifest.text.bos else []
    nll = 0.0
    for start, first, stop in windows(len(ids), window, stride, len(begin)):
        tokens = [*(begin if start else []), *ids[start:stop]]
        nll += float(scores(model.runtime, tokens, stop - first).sum())
        progress(stop - 1, len(ids) - 1)
    return Perplexity(nll, len(ids) - 1)


def windows(n: int, window: int, stride: int, begin: int = 0) -> Iterator[tuple[int, int, int]]:
    """(start, first scored, stop) of every window; those after the first leave `begin` places free.

    >>> list(windows(7, 4, 2))
    [(0, 1, 4), (2, 4, 6), (4, 6, 7)]
    """
    stop = min(window, n)
    yield 0, 1, stop
    while stop < n:
        first, stop = stop, min(stop + stride, n)
        yield first + stride - window + begin, first, stop


def scores(runtime: Runtime, tokens: Sequence[int], n: int) -> NDArray[np.float64]:
    """Negative log-likelihood of the last n tokens [n], each given all before it."""
    cache, first = runtime.new_cache(len(tokens)), len(tokens) - 1 - n
    size = min(runtime.capabilities.prefill_chunk, max(_LOGITS // runtime.spec.vocab_size, 1))
    parts = []
    for at in range(0, len(tokens) - 1, size):
        rows = Rows.chain(tokens[at : min(at + size, len(tokens) - 1)], at)
        skip = min(max(first - at, 0), len(rows))
        outputs = Outputs(logits=skip < len(rows), logits_from=skip)
        logits = forward_one(runtime, Call(rows, cache, outputs=outputs)).logits
        if logits is not None:
            parts.append(_nll(logits, np.asarray(tokens[at + skip + 1 : at + len(rows) + 1], np.int64)))
        cache.commit(range(len(rows)))
    return np.concatenate(parts)


def text_bytes(model: Model, ids: Sequence[int]) -> int:
    """Bytes of the text that `perplexity` scores: what ids[1:] add to the first token's text."""
    decode = model.tokenizer.decode
    return len(decode(ids).encode()) - len(decode(ids[:1]).encode())


def _nll(logits: Logits, following: NDArray[np.int64]) -> NDArray[np.float64]:
    """logits [n, vocab_size], following [n] -> [n]."""
    chosen = logits[np.arange(len(following)), following].astype(np.float64)
    top = logits.max(axis=1, keepdims=True)
    total = np.exp(logits - top).sum(axis=1, dtype=np.float64)
    nll: NDArray[np.float64] = np.log(total) + top[:, 0] - chosen
    return nll


def _check(model: Model, ids: Sequence[int], window: int, stride: int) -> None:
    limit, vocab = model.spec.context_length, model.spec.vocab_size
    if len(ids) < 2:
        raise UsageError(f"a text of {len(ids)} tokens: perplexity needs at least 2")
    if not 2 <= window <= limit:
        raise UsageError(f"window {window}: must be from 2 to {limit}, the model's limit")
    if not 1 <= stride < window:
        raise UsageError(f"stride {stride}: must be from 1 to {window - 1}, one less than the window")
    if not 0 <= min(ids) <= max(ids) < vocab:
        raise UsageError(f"token {min(ids)} to {max(ids)}: outside the vocabulary of {vocab}")
