"""Sampling: logits of one row -> `Probs` -> a token. Plain functions; `Probs` is THE form of a distribution.

    logits ── adjust ──> scores ── probs ──> Probs ── draw ──> token
              bias, penalties      temperature, then the cuts: top-k, top-p, min-p, typical

Order and meaning of every step are Hugging Face's, so numbers carry over; a cut ranks the
distribution that the cuts before it left, renormalised.

Worked example, `Sampling(temperature=1.0, top_k=3, top_p=0.7)`:

    p of the logits         0.4   0.3   0.2   0.1
    top-k keeps three       4/9   3/9   2/9    -
    top-p keeps the fewest  4/9   3/9    -     -      4/9 < 0.7 <= 7/9
    renormalised            4/7   3/7    -     -
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from numbers import Integral, Real

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UsageError
from edgedec.options import option

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]
Logits = NDArray[np.float32]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Sampling:
    """How to choose the next token; the defaults are greedy and change nothing.

    `repetition_penalty` counts prompt and output (Hugging Face); `presence_penalty` and
    `frequency_penalty` count generated tokens only (OpenAI). `logit_bias` may be given as a
    mapping token -> bias; -inf forbids a token. `seed` None means fresh entropy.
    """

    temperature: float = option(0.0, "number", "Temperature; 0: greedy whatever the rest.", minimum=0)
    top_k: int = option(0, "integer", "Keep the K likeliest tokens; 0 keeps all.")
    top_p: float = option(
        1.0, "number", "Keep the likeliest tokens that hold this mass.", exclusiveMinimum=0, maximum=1
    )
    min_p: float = option(0.0, "number", "Drop tokens below this share of the likeliest.", minimum=0, maximum=1)
    typical_p: float = option(1.0, "number", "Locally typical sampling, this mass.", exclusiveMinimum=0, maximum=1)
    repetition_penalty: float = option(
        1.0, "number", "Weakens tokens of prompt and output; 1 is off.", exclusiveMinimum=0
    )
    presence_penalty: float = option(
        0.0, "number", "Subtract this from tokens generated before.", minimum=-2, maximum=2
    )
    frequency_penalty: float = option(
        0.0, "number", "Subtract this for every time a token was generated.", minimum=-2, maximum=2
    )
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = option(
        (), "bias", "Add to a token id's logit; -inf forbids it."
    )
    seed: int | None = option(
        None, "integer", "Makes sampling repeatable; drawn afresh if left out.", maximum=2**63 - 1
    )

    @property
    def adjusts(self) -> bool:
        """Are logits changed before anything is chosen by them?"""
        penalties = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty)
        return bool(self.logit_bias) or penalties != (1, 0, 0)

    @property
    def takes_largest(self) -> bool:
        """Is the next token that of the largest logit, whatever the others are?"""
        return self.temperature == 0 and not self.adjusts

    def __post_init__(self) -> None:
        _real("temperature", self.temperature, "[0, inf)")
        _whole("top_k", self.top_k)
        _real("top_p", self.top_p, "(0, 1]")
        _real("min_p", self.min_p, "[0, 1]")
        _real("typical_p", self.typical_p, "(0, 1]")
        _real("repetition_penalty", self.repetition_penalty, "(0, inf)")
        _real("presence_penalty", self.presence_penalty, "[-2, 2]")
        _real("frequency_penalty", self.frequency_penalty, "[-2, 2]")
        if self.seed is not None:
            _whole("seed", self.seed)
        # Sorted pairs, so that equal settings compare and hash equal however they were written.
        object.__setattr__(self, "logit_bias", _bias_pairs(self.logit_bias))


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
    scores = adjust(logits, sampling, ids, n_prompt)
    best = int(np.argmax(scores))  # the lowest id of a tie; NaN if there is one
    top = _finite(scores[best])
    if sampling.temperature == 0:
        return Probs(np.array([best], np.int64), np.ones(1))
    kept = np.flatnonzero(scores >= _kth(scores, sampling.top_k))
    p = _softmax(scores[kept] if len(kept) < len(scores) else scores, top, sampling.temperature)
    kept, p = _keep(kept, p, p > 0)  # what rounded to nothing is outside the support
    if sampling.top_p < 1:
        kept, p = _keep(kept, p, _top_p(p, sampling.top_p))
    if sampling.min_p > 0:
        kept, p = _keep(kept, p, p >= sampling.min_p * p.max())
    if sampling.typical_p < 1:
        kept, p = _keep(kept, p, _typical(p, sampling.typical_p))
    return Probs(kept, p)


def adjust(logits: Logits, sampling: Sampling, ids: Sequence[int] | Ids, n_prompt: int) -> Logits:
    """Bias, then penalties. logits [vocab] -> [vocab]: the same array if nothing is to do, else a new one."""
    repetition, presence, frequency = (
        sampling.repetition_penalty,
        sampling.presence_penalty,
        sampling.frequency_penalty,
    )
    if not sampling.adjusts:
        return logits
    scores = logits.copy()
    for token, bias in dict(sampling.logit_bias).items():
        if token >= len(scores):
            raise UsageError(f"logit_bias: token {token} is outside the vocabulary of {len(scores)}")
        scores[token] += bias
    # A context may hold ids above the logits' width (padded or added tokens); none can be drawn.
    context = np.asarray(ids, np.int64)
    if repetition != 1:
        seen = context[context < len(scores)]
        s = scores[seen]  # a token seen twice is written twice with one value: penalised once
        scores[seen] = np.where(s < 0, s * repetition, s / repetition)
    if presence != 0 or frequency != 0:
        output = context[n_prompt:]
        used, counts = np.unique(output[output < len(scores)], return_counts=True)
        scores[used] -= (presence + frequency * counts).astype(scores.dtype)
    return scores


def draw(probs: Probs, rng: np.random.Generator) -> int:
    """A token, by inverse CDF with exactly one `rng.random()`, so a seed means one number per token."""
    u = rng.random()
    if len(probs.ids) == 1:
        return int(probs.ids[0])
    cdf = np.cumsum(probs.p)
    i = int(np.searchsorted(cdf, u * cdf[-1], side="right"))  # cdf[-1] is 1 up to rounding
    return int(probs.ids[min(i, len(cdf) - 1)])


def residual(p: Probs, q: Probs) -> Probs:
    """norm(max(p - q, 0)): what to draw from when a draft from q was refused.

    Where p is nowhere above q the draft is never refused but by rounding; then p itself is returned.

        p = 0.5 0.3 0.2     q = 0.2 0.6 0.2     residual = 1 0 0
    """
    if len(q.ids) == 0:
        return p
    at = np.minimum(np.searchsorted(q.ids, p.ids), len(q.ids) - 1)
    gap = p.p - np.where(q.ids[at] == p.ids, q.p[at], 0.0)
    keep = gap > 0
    return Probs(p.ids[keep], gap[keep] / gap[keep].sum()) if keep.any() else p


def logprob(logits: Logits, token: int) -> float:
    """Log-probability of a token under the model itself, before any sampling setting. logits [vocab]."""
    if not 0 <= token < len(logits):
        raise UsageError(f"token {token} is outside the vocabulary of {len(logits)}")
    return float(logits[token]) - _log_total(logits)


def top_logprobs(logits: Logits, n: int) -> list[tuple[int, float]]:
    """The n likeliest tokens with their log-probabilities, descending, ties by id. logits [vocab]."""
    _whole("n", n)
    if n == 0:
        return []
    total = _log_total(logits)
    near = np.flatnonzero(logits >= _kth(logits, n, lowest=-inf))
    order = near[np.argsort(-logits[near], kind="stable")][:n]
    return [(int(i), float(logits[i]) - total) for i in order]


def _kth(scores: Logits, k: int, lowest: float = float(np.finfo(np.float32).min)) -> float:
    """The k-th largest score; `lowest` if k is 0 (off), or the scores are too few. -inf stays impossible."""
    n = len(scores)
    if not 0 < k < n:
        return lowest
    return max(float(np.partition(scores, n - k)[n - k]), lowest)


def _softmax(scores: Logits, top: float, temperature: float) -> Floats:
    """scores [n] -> p [n]. In place: at 128k tokens fresh memory costs more than the arithmetic."""
    p = scores.astype(np.float64)
    p -= top  # first, so that no temperature, however small, can overflow to +inf or NaN
    with np.errstate(over="ignore"):
        p /= temperature
    np.exp(p, out=p)
    p /= p.sum()
    return p


def _top_p(p: Floats, mass: float) -> Mask:
    """Drop the unlikeliest tokens while what is dropped stays within 1 - mass. p [n] -> keep [n].

    Tokens of at most (1 - mass) / n each cannot exceed 1 - mass together, so they need no sorting.
    """
    floor = min((1 - mass) / len(p), np.nextafter(p.max(), 0))  # the likeliest always stays
    rising = np.sort(p[p > floor])
    dropped = (p.sum() - rising.sum()) + np.cumsum(rising)
    stay = max(int(np.sum(dropped > 1 - mass)), 1)
    border = rising[-stay]
    keep: Mask = p > border
    keep[np.flatnonzero(p == border)[: stay - int(keep.sum())]] = True  # of a tie the lowest ids stay
    return keep


def _typical(p: Floats, mass: float) -> Mask:
    """Locally typical sampling (Meister et al. 2022): keep the tokens whose surprise is nearest the entropy.

    p [n] -> keep [n]: the fewest that reach `mass`, and their ties.
    """
    surprise = -np.log(p)
    far = np.abs(surprise - np.sum(p * surprise))
    order = np.argsort(far)
    last = min(int(np.sum(np.cumsum(p[order]) < mass)), len(p) - 1)
    keep: Mask = far <= far[order[last]]
    return keep


def _keep(ids: Ids, p: Floats, keep: Mask) -> tuple[Ids, Floats]:
    """The kept tokens, renormalised."""
    return (ids, p) if keep.all() else (ids[keep], p[keep] / p[keep].sum())


def _log_total(logits: Logits) -> float:
    """log sum exp, float64. logits [vocab]."""
    top = _finite(np.max(logits))
    return top + float(np.log(np.exp(logits.astype(np.float64) - top).sum()))


def _finite(top: np.float32) -> float:
    """The largest logit, of which NaN and infinities are refused."""
    if not isfinite(top):
        raise UsageError(f"logits: the largest is {top}; need at least one finite value and no NaN or +inf")
    return float(top)


def _real(name: str, value: object, allowed: str) -> None:
    """Refuse what is no number within `allowed`, an interval such as "(0, 1]"."""
    low, high = map(float, allowed[1:-1].split(","))
    if type(value) is not bool and isinstance(value, Real):
        x = float(value)
        if low < x < high or (x == low and allowed[0] == "[") or (x == high and allowed[-1] == "]"):
            return
    raise UsageError(f"{name}: {value!r} is out of range; allowed: {allowed}")


def _whole(name: str, value: object) -> None:
    if type(value) is bool or not isinstance(value, Integral) or value < 0:
        raise UsageError(f"{name}: {value!r} is out of range; allowed: whole numbers from 0 on")


def _bias_pairs(bias: Mapping[int, float] | Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """Pairs sorted by token, checked."""
    try:
        pairs = [(token, value) for token, value in (bias.items() if isinstance(bias, Mapping) else bias)]
    except (TypeError, ValueError) as e:
        raise UsageError(f"logit_bias: {bias!r} is out of range; allowed: a mapping token -> bias") from e
    for token, value in pairs:
        _whole("logit_bias token", token)
        _real(f"logit_bias[{token}]", value, "[-inf, inf)")
    if len({token for token, _ in pairs}) < len(pairs):
        raise UsageError(f"logit_bias: {bias!r} is out of range; allowed: one bias for a token")
    return tuple(sorted((int(token), float(value)) for token, value in pairs))
