"""Guesses of tokens that are drawn: a draft made with the target's own random numbers (Daliri, Musco and Suresh,
drafter-invariant speculative decoding, 2024).

Sampling uses one random number u per token: the drawn token is the one whose interval contains u in the target's
cumulative distribution, by ascending ids. The seed gives the next random numbers before the distributions are known. So
the draft has not the head's likeliest token but the token whose interval contains u in the head's distribution, and its
neighbours. If the head's distribution equals the target's, every guess is right, even at high entropy. Verification is
unchanged: the same seed gives the same tokens.

The head's cumulative distribution F is not the target's. If the target's is a draw from a Dirichlet law about it, of
concentration K, a border between two tokens lies about F with the variance F (1 - F) / (K + 1), and

    P(the token between the borders a and b is drawn | u) = P(border a <= u) - P(border b <= u)

Worked example: 0.5, 0.3, 0.2 and u = 0.6, K = 4: the borders 0.5 and 0.8 lie below 0.6 with chances of 0.68 and 0.13
-> chances of 0.32, 0.55 and 0.13, where u alone says the second and the likeliest is the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from edgedec.decoding.context import Context
from edgedec.drafters._heads.guesses import Tokens, guesses
from edgedec.runtime import CallResult, Outputs
from edgedec.sampling import Floats, Logits, Sampling, distribution

# The concentration K of a head and of a draft model: how near to the target they are. The least chance of a guess.
HEAD, MODEL, _LEAST = 4.0, 8.0, 1e-3
# The logistic curve with the slope of the normal one.
_SLOPE = 1.7
_TINY = 1e-9
Guesses = tuple[list[list[int]], list[list[float]]]


class Likeliest:
    """The head's likeliest tokens after each row, level by level. `outputs`: what its calls must return."""

    def __init__(self, k: int, hidden: Sequence[int], tokens: Tokens | None) -> None:
        self.outputs, self._tokens = Outputs(top=k, logsum=True, hidden=tuple(hidden)), tokens

    def guesses(self, result: CallResult, level: int) -> Guesses | None:
        """The target's tokens that may follow each row, with probabilities; None if the result lacks them."""
        return None if result.ids is None else guesses(result, self._tokens)


class Foreseen:
    """Guesses for drawn tokens: level n by the random number `numbers[n]`."""

    def __init__(
        self, k: int, hidden: Sequence[int], tokens: Tokens | None, sampling: Sampling, numbers: Sequence[float]
    ) -> None:
        self.outputs = Outputs(logits=True, hidden=tuple(hidden))
        self._k, self._tokens, self._sampling, self._numbers = k, tokens, sampling, numbers

    def guesses(self, result: CallResult, level: int) -> Guesses | None:
        if result.logits is None:
            return None
        found = [drawn(row, self._numbers[level], self._sampling, self._k) for row in result.logits]
        tokens = self._tokens
        ids = [(places if tokens is None else tokens[places]).tolist() for places, _ in found]
        return ids, [chances.tolist() for _, chances in found]


def upcoming(context: Context, n: int) -> list[float]:
    """The random numbers for the next n tokens of a text; the state of its generator does not change."""
    before = context.rng.bit_generator.state
    numbers: list[float] = context.rng.random(n).tolist()
    context.rng.bit_generator.state = before
    return numbers


def drawn(logits: Logits, u: float, sampling: Sampling, k: int, near: float = HEAD) -> tuple[NDArray[np.int64], Floats]:
    """At most k tokens that are likely to be drawn by u, given a head's `logits` [n], the likeliest first, with
    probabilities; none if the logits are not usable. near: the concentration."""
    if not isfinite(logits.max()):
        return np.zeros(0, np.int64), np.zeros(0)
    ids, p = _sampled(logits, sampling)
    upto = np.cumsum(p)
    known = np.flatnonzero(p >= _LEAST * upto[-1])
    high = upto[known] / upto[-1]
    chances = _below(high - p[known] / upto[-1], u, near) - _below(high, u, near)
    best = np.argsort(-chances, kind="stable")[:k]
    places = known[best]
    return (places if ids is None else ids[places]), chances[best]


def _sampled(logits: Logits, sampling: Sampling) -> tuple[NDArray[np.int64] | None, Floats]:
    """Tokens (None: all of them, in order) and the probability of each under the target's settings, given these
    logits."""
    if sampling.top_k or sampling.top_p < 1 or sampling.min_p or sampling.typical_p < 1:
        found = distribution(logits, sampling)
        return found.ids, found.p
    return None, np.exp((logits - logits.max()) / np.float32(sampling.temperature)).astype(np.float64)


def _below(borders: Floats, u: float, near: float) -> Floats:
    """The probability that each of the target's borders is at most u, given the head's borders."""
    inside = np.clip(borders, _TINY, 1.0 - _TINY)
    spread = np.sqrt(inside * (1.0 - inside) / (near + 1.0))
    found: Floats = 1.0 / (1.0 + np.exp(np.clip(-_SLOPE * (u - inside) / spread, -60.0, 60.0)))
    return found
