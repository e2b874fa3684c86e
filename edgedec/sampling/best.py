"""The distribution of the next token from the k best scores of a row and its log-sum, where these decide it.

No token outside the k best has a score above `border`, and the weights exp(score / temperature) of all of them add up
to an amount known within bounds (`_outside`). Every cut is then decided, or not, whatever those scores are:

    top-k     decided if k of the known scores are above the border
    min-p     decided if a token at the border would be dropped
    top-p     decided token by token: the weight before it against top_p of all, at both bounds
    typical   decided once another cut has left known tokens only

Once a cut leaves known tokens only, the rest is `distributions.cut` on these: the same bytes as from all logits. A
comparison within `_SLACK` or the bounds of its threshold decides nothing: `decided` then returns None, and the caller
takes all logits. Bias, penalties and masks keep the bounds true (`lower`, `adjust_best`).

Worked example, weights 8 4 2 1 known, the rest between 0.5 and 1.5, so all between 15.5 and 16.5:

    top_p 0.7 is reached between 10.85 and 11.55; before the tokens lie 0, 8, 12, 14: two stay, whatever the rest is
    top_p 0.75: between 11.6 and 12.4: the third, before which lie 12, is undecided
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp, inf, log, nan

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UsageError
from edgedec.sampling.distributions import (
    Ids,
    Logits,
    Probs,
    charge,
    counted,
    cut,
    distribution,
    finite,
    point,
    repeat,
    weights,
)
from edgedec.sampling.settings import Sampling

# Relative: sums of float64 in another order; a runtime's log-sum, and a sum in float32.
_SLACK, _LOGSUM_ERROR, _SUM_ERROR = 1e-9, 4e-6, 2e-5
# A first shortlist has the tokens of at least this part of what top-p may drop.
_NEAR = 0.005
# Shorter rows are sampled from all scores at once.
_LEAST = 2048


@dataclass(frozen=True)
class Best:
    """The k best tokens of a row. ids [k] ascending; scores float32 [k].

    border: no token outside has a larger score (-inf: there is none outside). peak: the largest logit; rest: bounds of
    what exp((logit - peak) / temperature) of all tokens outside adds up to, and least: of what one of them is at most.
    lowered: how many tokens outside may have a smaller score than their logit (inf: any), raised: what the scores of
    those at most are that may have a larger one.
    """

    ids: Ids
    scores: Logits
    border: float
    peak: float
    rest: tuple[float, float] = (0.0, inf)
    least: float = 1.0
    lowered: float = 0
    raised: tuple[float, ...] = ()

    @classmethod
    def of(
        cls,
        ids: NDArray[np.int32],
        scores: Logits,
        vocab: int,
        logsum: float | None = None,
        temperature: float = 1.0,
    ) -> Best:
        """From a runtime's k best tokens [k], the best first, -1 where a logit is not finite, and the log of the sum of
        exp(logit / temperature) of the row."""
        if ids[0] < 0:
            finite(nan)
        n = int(np.sum(ids >= 0))
        order = np.argsort(ids[:n])
        peak, border = float(scores[0]), float(scores[n - 1]) if n == len(ids) < vocab else -inf
        if logsum is None or border == -inf:
            return cls(ids[:n][order].astype(np.int64), scores[:n][order], border, peak)
        total = _exp(logsum - peak / temperature)
        rest, error = total - float(weights(scores, peak, temperature).sum()), total * _LOGSUM_ERROR
        bounds = max(rest - error, 0.0), max(rest + error, 0.0)
        least = _weight(border, peak, temperature)
        return cls(ids[:n][order].astype(np.int64), scores[:n][order], border, peak, bounds, least)

    def lower(self, scores: Logits, outside: float = inf) -> Best:
        """With scores [k] in place of these, none of them larger, and so many tokens outside perhaps lowered too."""
        return replace(self, scores=scores, lowered=self.lowered + outside)


def adjust_best(best: Best, sampling: Sampling, ids: Sequence[int] | Ids, n_prompt: int, vocab: int) -> Best:
    """`distributions.adjust` on the k best of a row. A token outside is treated as if its logit were the largest that
    it can be: bias and penalties never change an order of two values of one token."""
    if not sampling.adjusts:
        return best
    context, output = counted(ids, n_prompt, sampling.repeat_last_n)
    pairs = sampling.bias
    biased = np.array([token for token, _ in pairs], np.int64)
    if len(biased) and biased[-1] >= vocab:
        raise UsageError(f"logit_bias: token {biased[-1]} is outside the vocabulary of {vocab}")
    seen = np.unique(context[context < vocab]) if sampling.repetition_penalty != 1 else context[:0]
    used, counts = np.unique(output[output < vocab], return_counts=True)
    tokens = np.unique(np.concatenate([best.ids, biased, seen, used]))
    known = np.searchsorted(tokens, best.ids)
    scores = np.full(len(tokens), best.border, np.float32)
    scores[known] = best.scores
    scores[np.searchsorted(tokens, biased)] += np.array([bias for _, bias in pairs], np.float32)
    repeat(scores, np.searchsorted(tokens, seen), sampling.repetition_penalty)
    charge(scores, np.searchsorted(tokens, used), counts, sampling)
    outside: list[float] = np.delete(scores, known).tolist()
    return replace(
        best,
        scores=scores[known],
        border=max([best.border, *outside]),
        lowered=best.lowered + len(outside),
        raised=best.raised + tuple(outside if _may_raise(sampling) else ()),
    )


def _may_raise(sampling: Sampling) -> bool:
    """Whether bias and penalties may raise any score."""
    larger = sampling.repetition_penalty < 1 or min(sampling.presence_penalty, sampling.frequency_penalty) < 0
    return larger or any(bias > 0 for _, bias in sampling.bias)


def decided(best: Best, sampling: Sampling) -> Probs | None:
    """The result of `distribution` for the whole row; None if the k best do not decide it."""
    scores, border, k = best.scores, best.border, sampling.top_k
    top = float(scores.max(initial=-inf))
    if not top > border:
        if border == -inf:
            finite(top)
        return None
    if sampling.temperature == 0:
        return point(int(best.ids[scores.argmax()]))
    kept = scores >= -np.finfo(np.float32).max
    closed = border == -inf
    if 0 < k <= int(np.sum(scores > border)):
        kept &= scores >= np.partition(scores, len(scores) - k)[len(scores) - k]
        closed = True
    if closed:
        return cut(best.ids[kept], scores[kept], top, sampling)
    return None if k else _decided_open(best, top, sampling)


def _decided_open(best: Best, top: float, sampling: Sampling) -> Probs | None:
    """`decided` while tokens outside are not yet dropped."""
    order = np.argsort(-best.scores, kind="stable")
    falling = best.scores[order]
    w = weights(falling, top, sampling.temperature)
    n = len(w)
    if sampling.top_p < 1:
        nucleus = _nucleus(w, _outside(best, top, sampling.temperature), sampling.top_p)
        if nucleus is None or (nucleus < n and not falling[nucleus - 1] > best.border):
            return None
        n = nucleus
    if n == len(w):  # a token outside may still stand
        edge = exp((best.border - top) / sampling.temperature)
        if edge * (1 + _SLACK) >= sampling.min_p:
            return None
    kept = np.sort(order[:n])
    return cut(best.ids[kept], best.scores[kept], top, sampling, top_p=1.0)


def _nucleus(w: NDArray[np.float64], outside: tuple[float, float], mass: float) -> int | None:
    """How many of the weights w [k], descending, are in the nucleus, if that is decided; k: all, and perhaps more."""
    known, before = float(w.sum()), np.cumsum(w) - w
    low, high = (mass * (known + bound) for bound in outside)
    stay = int(np.searchsorted(before, low * (1 - _SLACK)))
    stay, out = max(stay, 1), len(w) - int(np.searchsorted(before, high * (1 + _SLACK), side="right"))
    return stay if stay + out >= len(w) else None


def _outside(best: Best, top: float, temperature: float) -> tuple[float, float]:
    """Bounds of what the weights of all tokens outside add up to, relative to that of a score `top`."""
    scale, (low, high) = _weight(best.peak, top, temperature), best.rest
    low = 0.0 if best.lowered == inf else max(low - best.lowered * best.least, 0.0)
    if not scale * max(high, 1.0) < inf:
        return 0.0, inf
    return low * scale, high * scale + sum(_weight(score, top, temperature) for score in best.raised)


def _weight(score: float, top: float, temperature: float) -> float:
    return _exp((score - top) / temperature)


def _exp(x: float) -> float:
    return exp(x) if x < 700 else inf


def quick_distribution(scores: Logits, sampling: Sampling) -> Probs:
    """`distribution`, by way of the few scores that count wherever they decide it. scores [vocab]."""
    if sampling.temperature > 0 and sampling.top_k == 0 and len(scores) >= _LEAST:
        for best in _shortlists(scores, sampling):
            found = decided(best, sampling)
            if found is not None:
                return found
    return distribution(scores, sampling)


def _shortlists(scores: Logits, sampling: Sampling) -> Iterator[Best]:
    """The scores above a border; below it lies what min-p drops, or what adds up to little beside 1 - top_p."""
    top, temperature = finite(np.max(scores)), sampling.temperature
    if sampling.top_p == 1:
        if sampling.min_p > 1e-30:
            yield _above(scores, top, top + temperature * (log(sampling.min_p) - 1e-3))
    elif 1e-2 <= temperature <= 1e2:
        w = scores - np.float32(top)
        w *= np.float32(1 / temperature)
        np.exp(w, out=w)
        total = float(w.sum())
        for share in _NEAR * (1 - sampling.top_p), (1 - sampling.top_p) / len(scores):
            yield _above(scores, top, top + temperature * log(total * share), w)


def _above(scores: Logits, top: float, border: float, w: NDArray[np.float32] | None = None) -> Best:
    """The scores above a border; w [vocab]: the weights of all of them, of which those above are then set to 0."""
    line = np.nextafter(np.float32(border), np.float32(-np.inf))
    ids = np.flatnonzero(scores > line)
    if w is None:
        return Best(ids, scores[ids], float(line), top)
    w[ids] = 0
    rest = float(w.sum())
    return Best(ids, scores[ids], float(line), top, (rest * (1 - _SUM_ERROR), rest * (1 + _SUM_ERROR)))
