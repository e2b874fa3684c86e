"""Calibration of drafters' claims: the recent acceptance rate of guesses of one kind.

A drafter claims for each token how likely it is. Claims of about one size are one kind; each kind has a rate of hits
over tests, older tests weighing less, that starts from the claim itself. It is state: saved with a session, forked, and
shared by the sessions of a server, each of which starts from the shared statistics and continues with its own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UsageError

BINS = 24
# The weight of the claim itself in tests, and the memory in tests.
_PRIOR, _MEMORY = 3.0, 48.0
# The weight of other texts' statistics in tests of this text; a text's weight in the shared statistics, and the calls
# between two updates.
_INHERITED, _BLEND, _EVERY = 8.0, 0.25, 8

Floats = NDArray[np.float64]
_MIDDLES = (np.arange(BINS) + 0.5) / BINS


class Calibration:
    """`estimates[kind]`: the acceptance rate of guesses of this kind; `kind_of(claim)` is from 0 to BINS - 1. `hits`
    and `tests`: the counts that it is computed from. All are [BINS]."""

    def __init__(self) -> None:
        self.hits: Floats = np.zeros(BINS)
        self.tests: Floats = np.zeros(BINS)
        self.estimates: Floats = _MIDDLES.copy()

    def add(self, kind: int, came_true: bool) -> None:
        """Add the outcome of a guess whose parent was right."""
        hits, tests = self.hits.item(kind) + came_true, self.tests.item(kind) + 1
        if tests > _MEMORY:
            hits, tests = hits / 2, tests / 2
        self.hits[kind], self.tests[kind] = hits, tests
        self.estimates[kind] = (hits + _PRIOR * (kind + 0.5) / BINS) / (tests + _PRIOR)

    def copy(self) -> Calibration:
        """An independent one with the same counts."""
        twin = Calibration.__new__(Calibration)
        twin.hits, twin.tests, twin.estimates = self.hits.copy(), self.tests.copy(), self.estimates.copy()
        return twin

    def state(self) -> Floats:
        """Hits and tests [2, BINS]."""
        return np.stack([self.hits, self.tests])

    def restore(self, state: NDArray[np.generic]) -> None:
        """Restore a state of `state`; UsageError if it is invalid."""
        values = state.astype(np.float64) if state.shape == (2, BINS) and state.dtype.kind == "f" else None
        if values is None or not np.isfinite(values).all() or not (values[0] >= 0).all():
            raise UsageError("state calibration: not hits and tests by kind; drop the file and learn again")
        if not ((values[0] <= values[1]).all() and (values[1] <= _MEMORY).all()):
            raise UsageError("state calibration: more hits than tests; drop the file and learn again")
        self._set(values[0], values[1])

    def inherit(self, other: Calibration) -> None:
        """Start from another calibration, with the weight of a few tests."""
        share = np.minimum(1.0, _INHERITED / np.maximum(other.tests, _INHERITED))
        self._set(other.hits * share, other.tests * share)

    def blend(self, other: Calibration) -> None:
        """Blend in the recent statistics of another calibration."""
        weight = np.where(other.tests > 0, _BLEND, 0.0)
        self._set(self.hits + weight * (other.hits - self.hits), self.tests + weight * (other.tests - self.tests))

    def _set(self, hits: Floats, tests: Floats) -> None:
        self.hits[:], self.tests[:] = hits, tests
        self.estimates[:] = (hits + _PRIOR * _MIDDLES) / (tests + _PRIOR)


class SharedCalibrations:
    """The calibrations of a server's sessions, by drafter. Not for two threads at once."""

    def __init__(self) -> None:
        self._by: dict[str, Calibration] = {}
        # What a new session starts from, until the statistics change.
        self._first: dict[str, Calibration] = {}

    def start(self, name: str) -> Calibration:
        """The calibration for a new session."""
        first = self._first.get(name)
        if first is None:
            first = self._first[name] = Calibration()
            if name in self._by:
                first.inherit(self._by[name])
        return first.copy()

    def add(self, name: str, own: Calibration) -> None:
        """Add the recent statistics of a session."""
        if name not in self._by:
            self._by[name] = Calibration()
        self._by[name].blend(own)
        self._first.pop(name, None)


def due(calls: int) -> bool:
    """Whether statistics are shared after this number of calls."""
    return calls % _EVERY == _EVERY // 2


def kind_of(claim: float) -> int:
    """The kind of a claim: equal steps of probability."""
    return min(BINS - 1, max(0, int(claim * BINS)))
