"""Sequential Monte Carlo: particles that are extended, weighted and resampled.

With draws under a constraint and their weights (`awrs`), particles are of the law of whole texts under the constraint
as their number grows; texts whose tokens are drawn from masked laws are not (Lew et al., 2023; Lipkin et al., 2025;
text). Particles are resampled where their effective number falls below half, systematically: equal weights change
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, Self, TypeVar

import numpy as np

from edgedec.sampling.distributions import Floats


class Forkable(Protocol):
    def fork(self) -> Self: ...


P = TypeVar("P", bound=Forkable)


class Particles(NamedTuple):
    """shares: the weights, which sum to 1; log_mean: the logarithm of the mean weight, an estimate of the mass of all
    texts that the constraint allows; resampled: how often."""

    shares: Floats
    log_mean: float
    resampled: int


def smc(
    particles: list[P], extend: Callable[[P], float | None], rng: np.random.Generator, threshold: float = 0.5
) -> Particles:
    """Extend the particles, in place, until all have ended. extend: adds a token and returns the logarithm of its
    weight, None if the text has ended; -inf for a dead end."""
    n, log_mean, resampled = len(particles), 0.0, 0
    logs = np.zeros(n)
    ended = [False] * n
    while not all(ended):
        for i in range(n):
            if not ended[i] and logs[i] > -np.inf:
                found = extend(particles[i])
                ended[i] = found is None
                logs[i] += found or 0.0
            ended[i] = ended[i] or logs[i] == -np.inf
        shares, log_total = shares_of(logs)
        if not shares.any():
            return Particles(shares, -np.inf, resampled)
        if 1 / float((shares**2).sum()) < threshold * n and not all(ended):
            chosen = systematic(shares, float(rng.random()))
            # The first copy of each is itself.
            copies = [particles[k] if chosen.index(k) == i else particles[k].fork() for i, k in enumerate(chosen)]
            particles[:], ended = copies, [ended[k] for k in chosen]
            log_mean, logs, resampled = log_mean + log_total, np.zeros(n), resampled + 1
    shares, log_total = shares_of(logs)
    return Particles(shares, log_mean + log_total, resampled)


def systematic(shares: Floats, u: float) -> list[int]:
    """Places drawn in proportion to shares, with one number: each floor or ceil of its expected times.

    >>> systematic(np.array([0.5, 0.25, 0.25, 0.0]), 0.5)
    [0, 0, 1, 2]
    """
    n = len(shares)
    places = np.searchsorted(np.cumsum(shares) * n, np.arange(n) + u, side="right")
    return np.minimum(places, int(np.flatnonzero(shares)[-1])).tolist()


def shares_of(logs: Floats | Sequence[float]) -> tuple[Floats, float]:
    """The normalised weights, all 0 if none is above 0, and the logarithm of their mean."""
    values = np.asarray(logs, np.float64)
    top = float(values.max())
    if top == -np.inf:
        return np.zeros(len(values)), -np.inf
    weights = np.exp(values - top)
    return weights / weights.sum(), top + float(np.log(weights.mean()))
