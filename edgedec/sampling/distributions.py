"""Sampling: logits of one row -> `Probs` -> a token. Plain functions; `Probs` is THE form of a distribution.

    logits ── adjust ──> scores ── distribution ──> Probs ── draw ──> token
              bias, penalties      temperature, then the cuts: top-k, top-p, min-p, typical

Order and meaning of every step are Hugging Face's, so numbers carry over; a cut ranks the
distribution that the cuts before it left, renormalised.

Worked example, `Sampling(temperature=1.0, top_k=3, top_p=0.7)`:

    p of the logits         0.4   0.3   0.2   0.1
    top-k keeps three       4/9   3/9   2/9    -
    top-p keeps the fewest  4/9   3/9    -     -      4/9 < 0.7 <= 7/9
    renormalised            4/7   3/7    -     -

The probabilities of the kept tokens are computed from their scores alone, in one way: a shorter way to find the kept
tokens (`best.py`) gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UsageError
from edgedec.runtime.best import kth_largest
from edgedec.sampling.settings import Sampling

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]
Logits = NDArray[np.float32]
Mask = NDArray[np.bool_]
_LOWEST = float(np.finfo(np.float32).min)


@dataclass(frozen=True, eq=False)
class Probs:
    """A distribution over tokens, sparse. ids: int64 [n] ascending; p: float64 [n], positive, sums to 1."""

    ids: Ids
    p: Floats

    def of(self, token: int) -> float:
        """The probability of one token; 0.0 outside the support."""
        i = int(np.searchsorted(self.ids, token))
        return float(self.p[i]) if i < len(self.ids) and self.ids[i] == token else 0.0


def probs(logits: Logits, sampling: Sampling, ids: Sequence[int] | Ids, n_prompt: int) -> Probs:
    """The distribution of the next token. logits [vocab]; ids: the context, ids[n_prompt:] its output."""
    return distribution(adjust(logits, sampling, ids, n_prompt), sampling)


def distribution(scores: Logits, sampling: Sampling) -> Probs:
    """The distribution that temperature and cuts make of scores [vocab]."""
    best = int(np.argmax(scores))  # the lowest id of a tie; NaN if there is one
    top = finite(scores[best])
    if sampling.temperature == 0:
        return point(best)
    k = sampling.top_k
    kept = np.flatnonzero(scores >= (max(kth_largest(scores, k), _LOWEST) if 0 < k < len(scores) else _LOWEST))
    return cut(kept, scores[kept] if len(kept) < len(scores) else scores, top, sampling)


def cut(ids: Ids, scores: Logits, top: float, sampling: Sampling, top_p: float | None = None) -> Probs:
    """The cuts after top-k. ids [n] ascending, scores [n], of which `top` is the largest; top_p: in place of the
    setting's."""
    mass = sampling.top_p if top_p is None else top_p
    p = weights(scores, top, sampling.temperature)
    keep = p > 0  # probabilities that round to 0 are outside the support
    if mass < 1:
        ids, scores, p = _keep(ids, scores, p, keep)
        keep = nucleus(p / p.sum(), scores, mass)
    if sampling.min_p > 0:
        ids, scores, p = _keep(ids, scores, p, keep)
        keep = p >= sampling.min_p * p.max()
    if sampling.typical_p < 1:
        ids, scores, p = _keep(ids, scores, p, keep)
        keep = typical(p / p.sum(), sampling.typical_p)
    ids, scores, p = _keep(ids, scores, p, keep)
    p /= p.sum()
    return Probs(ids, p) if p.min() > 0 else Probs(ids[p > 0], p[p > 0])


def point(token: int) -> Probs:
    """All on one token."""
    return Probs(np.array([token], np.int64), np.ones(1))


def adjust(logits: Logits, sampling: Sampling, ids: Sequence[int] | Ids, n_prompt: int) -> Logits:
    """Bias, then penalties. logits [vocab] -> [vocab]: the same array if nothing is to do, else a new one."""
    if not sampling.adjusts:
        return logits
    scores = logits.copy()
    for token, bias in sampling.bias:
        if token >= len(scores):
            raise UsageError(f"logit_bias: token {token} is outside the vocabulary of {len(scores)}")
        scores[token] += bias
    # A context may hold ids above the logits' width (padded or added tokens); none can be drawn.
    context, output = counted(ids, n_prompt, sampling.repeat_last_n)
    repeat(scores, context[context < len(scores)], sampling.repetition_penalty)
    charge(scores, *np.unique(output[output < len(scores)], return_counts=True), sampling)
    return scores


def counted(ids: Sequence[int] | Ids, n_prompt: int, last: int) -> tuple[Ids, Ids]:
    """The tokens that the penalties count: of the text and, after n_prompt tokens, of its output; `last`: so many of
    the last ones, -1 for all."""
    context = np.asarray(ids, np.int64)
    first = max(len(context) - last, 0) if last >= 0 else 0
    return context[first:], context[max(first, n_prompt) :]


def repeat(scores: Logits, seen: Ids, repetition: float) -> None:
    """The repetition penalty, in place, on scores[seen]."""
    if repetition != 1:
        s = scores[seen]  # a token seen twice is written twice with one value: penalised once
        scores[seen] = np.where(s < 0, s * repetition, s / repetition)


def charge(scores: Logits, used: Ids, counts: Ids, sampling: Sampling) -> None:
    """Presence and frequency penalty, in place, on scores[used], each used so many times."""
    presence, frequency = sampling.presence_penalty, sampling.frequency_penalty
    if presence != 0 or frequency != 0:
        scores[used] -= (presence + frequency * counts).astype(scores.dtype)


def draw(probs: Probs, rng: np.random.Generator) -> int:
    """A token, by inverse CDF with exactly one `rng.random()`, so a seed means one number per token."""
    return draw_at(probs, rng.random())


def draw_at(probs: Probs, u: float) -> int:
    """The token at `u` in [0, 1) of the cumulative distribution."""
    if len(probs.ids) == 1:
        return int(probs.ids[0])
    cdf = np.cumsum(probs.p)
    i = int(np.searchsorted(cdf, u * cdf[-1], side="right"))  # cdf[-1] is 1 up to rounding
    return int(probs.ids[min(i, len(cdf) - 1)])


def residual(p: Probs, q: Probs) -> Probs:
    """norm(max(p - q, 0)): the distribution to draw from after a draft from q was rejected.

    Where p is nowhere above q the draft is never refused but by rounding; then p itself is returned.

        p = 0.5 0.3 0.2     q = 0.2 0.6 0.2     residual = 1 0 0
    """
    if len(q.ids) == 0:
        return p
    at = np.minimum(np.searchsorted(q.ids, p.ids), len(q.ids) - 1)
    gap = p.p - np.where(q.ids[at] == p.ids, q.p[at], 0.0)
    keep = gap > 0
    return Probs(p.ids[keep], gap[keep] / gap[keep].sum()) if keep.any() else p


def weights(scores: Logits, top: float, temperature: float) -> Floats:
    """exp((scores - top) / temperature), float64 [n]. In place: at 128k tokens fresh memory costs more than the
    arithmetic."""
    p = scores.astype(np.float64)
    p -= top  # first, so that no temperature, however small, can overflow to +inf or NaN
    with np.errstate(over="ignore"):
        p /= temperature
    return np.exp(p, out=p)


def finite(top: np.float32 | float) -> float:
    """The largest logit; UsageError if it is NaN or infinite."""
    if not isfinite(top):
        raise UsageError(f"logits: the largest is {top}; need at least one finite value and no NaN or +inf")
    return float(top)


def nucleus(p: Floats, scores: Logits | Floats, mass: float) -> Mask:
    """Drop the unlikeliest tokens while what is dropped stays within 1 - mass. p, scores [n] -> keep [n].

    Tokens of at most (1 - mass) / n each cannot exceed 1 - mass together, so they need no sorting.
    """
    floor = min((1 - mass) / len(p), np.nextafter(p.max(), 0))  # the likeliest always stays
    near = np.flatnonzero(p > floor)
    near = near[np.argsort(-scores[near], kind="stable")]  # of a tie the lowest ids stay
    rising = p[near][::-1]
    dropped = (p.sum() - rising.sum()) + np.cumsum(rising)
    stay = max(int(np.sum(dropped > 1 - mass)), 1)
    keep: Mask = np.zeros(len(p), bool)
    keep[near[:stay]] = True
    return keep


def typical(p: Floats, mass: float) -> Mask:
    """Locally typical sampling (Meister et al. 2022): keep the tokens whose surprise is nearest the entropy.

    p [n] -> keep [n]: the fewest that reach `mass`, and their ties.
    """
    surprise = -np.log(p)
    far = np.abs(surprise - np.sum(p * surprise))
    order = np.argsort(far)
    last = min(int(np.sum(np.cumsum(p[order]) < mass)), len(p) - 1)
    keep: Mask = far <= far[order[last]]
    return keep


def _keep(ids: Ids, scores: Logits, p: Floats, keep: Mask) -> tuple[Ids, Logits, Floats]:
    """The distribution of the kept tokens."""
    return (ids, scores, p) if keep.all() else (ids[keep], scores[keep], p[keep])
