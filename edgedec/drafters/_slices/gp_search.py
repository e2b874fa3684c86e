"""The search of SWIFT (S10) as the paper has it: a Gaussian process over sets of blocks, and random sets in between.

What a set is worth (tokens for the time of a plain call) is a smooth function of which blocks it skips: sets that
differ in few blocks are worth about as much. Tried next is the set of many random ones, and of the neighbours of the
best, with the largest expected improvement over the set in use.

    k(x, y) = s^2 exp(-d(x, y) / l), d: in how many blocks x and y differ
"""

from __future__ import annotations

from math import erf, exp, pi, sqrt

import numpy as np
from numpy.typing import NDArray

from edgedec.drafters import State
from edgedec.drafters._slices.block_search import Search, Skipped
from edgedec.errors import UsageError
from edgedec.spec import ModelSpec

# The latest trials are known; so many sets are weighed for the next one.
_KEPT, _WEIGHED = 128, 256
# How far values spread, how far a trial may be off, and in how many blocks sets differ that tell little of each other.
_SPREAD, _NOISE, _SCALE = 0.3, 0.1, 6.0


class GaussianSearch(Search):
    """`Search`, with another model of what a set is worth."""

    def __init__(self, spec: ModelSpec, start: Skipped, gamma: int) -> None:
        super().__init__(spec, start, gamma)
        self._sets = np.zeros((0, len(self._movable)), bool)
        self._rates = np.zeros(0)

    def _learn(self, skipped: Skipped, rate: float) -> None:
        self._sets = np.concatenate([self._sets, self._mask(skipped)[None]])[-_KEPT:]
        self._rates = np.append(self._rates, rate)[-_KEPT:]

    def _mask(self, skipped: Skipped) -> NDArray[np.bool_]:
        return np.isin(self._movable, skipped)

    def _drawn(self) -> Skipped:
        """The set with the largest expected improvement."""
        sets = [self._random() for _ in range(_WEIGHED)] + [self._swapped() for _ in range(_WEIGHED // 4)]
        masks = np.array([self._mask(skipped) for skipped in sets])
        mean, spread = self.expected(masks)
        best = self.value(self.skipped, max(self.rate, 0.0))
        gains = [improvement(m, s, best) for m, s in zip(mean.tolist(), spread.tolist(), strict=True)]
        return sets[int(np.argmax(gains))]

    def _random(self) -> Skipped:
        """A set of any size, half of the time near the size of the one in use."""
        n = len(self._movable)
        many = (
            len(self.skipped) + int(self._rng.integers(-2, 3)) if self._rng.random() < 0.5 else self._rng.integers(1, n)
        )
        chosen = self._rng.choice(self._movable, min(max(int(many), 1), n), replace=False)
        return tuple(sorted(chosen.tolist()))

    def expected(self, masks: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The mean and the standard deviation of what these sets [n, blocks] are worth."""
        known = [self.value(tuple(self._movable[mask].tolist()), rate) for mask, rate in zip(self._sets, self._rates)]
        values = np.array(known)
        middle = float(values.mean()) if len(values) else 1.0
        among = _kernel(self._sets, self._sets) + _NOISE**2 * np.eye(len(values))
        across = _kernel(masks, self._sets)
        solved = np.linalg.solve(among, np.column_stack([values - middle, across.T]))
        variance = _SPREAD**2 - np.einsum("ij,ji->i", across, solved[:, 1:])
        return middle + across @ solved[:, 0], np.sqrt(np.maximum(variance, 1e-9))

    def state(self) -> State:
        if self.rate < 0:
            return {}
        seen = np.array([self.rate, self.trials, self.stale], np.float64)
        skipped = np.array(self.skipped, np.int64)
        return {"skipped": skipped, "seen": seen, "sets": self._sets, "rates": self._rates}

    def restore(self, state: State) -> None:
        if state.keys() != {"skipped", "seen", "sets", "rates"} or state["seen"].shape != (3,):
            raise UsageError("drafter skip: the state kept is not of this model and search; delete it")
        sets, rates = state["sets"], state["rates"]
        fits = sets.shape == (len(rates), len(self._movable)) and len(rates) <= _KEPT and sets.dtype == bool
        if not fits or not np.isfinite(rates).all() or (rates < 0).any() or (rates > 1).any():
            raise UsageError("drafter skip: the state kept says what cannot be; delete it")
        self._resume(state)
        self._sets, self._rates = sets.copy(), rates.astype(float)


def _kernel(one: NDArray[np.bool_], other: NDArray[np.bool_]) -> NDArray[np.float64]:
    """k(x, y) for the rows of both."""
    apart = (one[:, None, :] != other[None, :, :]).sum(axis=2)
    found: NDArray[np.float64] = _SPREAD**2 * np.exp(-apart / _SCALE)
    return found


def improvement(mean: float, spread: float, best: float) -> float:
    """How much more than `best` a normal value brings in the mean, less counting as nothing.

    mean 1, spread 1, best 1 -> 1 / sqrt(2 pi) = 0.399
    """
    z = (mean - best) / spread
    return (mean - best) * 0.5 * (1 + erf(z / sqrt(2))) + spread * exp(-z * z / 2) / sqrt(2 * pi)


SEARCHES: dict[str, type[Search]] = {"thompson": Search, "gp": GaussianSearch}
