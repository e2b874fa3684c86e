"""The search of the SWIFT paper: a Gaussian process over sets of blocks, and random sets in between.

The value of a set (tokens in the time of a plain call) is a smooth function of the blocks that it skips: sets that
differ in few blocks have similar values. The next trial is the set with the largest expected improvement over the set
in use, among many random sets and neighbours of the best.

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

# The number of latest trials that are kept; the number of sets that are compared for the next trial.
_KEPT, _WEIGHED = 128, 256
# The spread of values, the noise of a trial, and the length scale in differing blocks.
_SPREAD, _NOISE, _SCALE = 0.3, 0.1, 6.0


class GaussianSearch(Search):
    """`Search` with a Gaussian process as the model of a set's value."""

    def __init__(self, spec: ModelSpec, start: Skipped, gamma: int) -> None:
        super().__init__(spec, start, gamma)
        self._sets = np.zeros((0, len(self._movable)), bool)
        self._rates = np.zeros(0)

    def _learn(self, skipped: Skipped, rate: float) -> None:
        self._sets = np.concatenate([self._sets, self._mask(skipped)[None]])[-_KEPT:]
        self._rates = np.append(self._rates, rate)[-_KEPT:]

    def _mask(self, skipped: Skipped) -> NDArray[np.bool_]:
        return np.array(list(map(set(skipped).__contains__, self._movable.tolist())), bool)

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
        """The mean and the standard deviation of the values of these sets [n, blocks]."""
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
    """The expected improvement of a normal value over `best`.

    mean 1, spread 1, best 1 -> 1 / sqrt(2 pi) = 0.399
    """
    z = (mean - best) / spread
    return (mean - best) * 0.5 * (1 + erf(z / sqrt(2))) + spread * exp(-z * z / 2) / sqrt(2 * pi)


SEARCHES: dict[str, type[Search]] = {"thompson": Search, "gp": GaussianSearch}
