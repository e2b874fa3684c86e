"""Calibration of drafters' claims: how often guesses of one kind came true here, lately.

A drafter claims for each token how likely it is. Claims of about one size are one kind; each kind has a rate of hits
over tests, older tests weighing less, that starts from the claim itself. It is state: saved with a session, forked, and
shared by the sessions of a server, each of which starts from what all have seen and goes its own way.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UsageError

BINS = 24
# How many tests the claim itself counts for, and how many are remembered.
_PRIOR, _MEMORY = 3.0, 48.0
# What was seen on other texts counts for so many tests of this one; a text's share of what is shared, and after how
# many calls it is added.
_INHERITED, _BLEND, _EVERY = 8.0, 0.25, 8

Floats = NDArray[np.float64]
_MIDDLES = (np.arange(BINS) + 0.5) / BINS


class Calibration:
    """`estimates[kind]`: how likely a guess of this kind comes true; `kind_of(claim)` is from 0 to BINS - 1. `hits` and
    `tests` are what it was learned from. All are [BINS]."""

    def __init__(self) -> None:
        self.hits: Floats = np.zeros(BINS)
        self.tests: Floats = np.zeros(BINS)
        self.estimates: Floats = _MIDDLES.copy()

    def add(self, kind: int, came_true: bool) -> None:
        """A guess was tested: its parent was right, and it was or was not."""
        hits, tests = self.hits.item(kind) + came_true, self.tests.item(kind) + 1
        if tests > _MEMORY:
            hits, tests = hits / 2, tests / 2
        self.hits[kind], self.tests[kind] = hits, tests
        self.estimates[kind] = (hits + _PRIOR * (kind + 0.5) / BINS) / (tests + _PRIOR)

    def state(self) -> Floats:
        """Hits and tests [2, BINS]."""
        return np.stack([self.hits, self.tests])

    def restore(self, state: NDArray[np.generic]) -> None:
        """Continue from what `state` returned; UsageError if it cannot be that."""
        values = state.astype(np.float64) if state.shape == (2, BINS) and state.dtype.kind == "f" else None
        if values is None or not np.isfinite(values).all() or not (values[0] >= 0).all():
            raise UsageError("state calibration: not hits and tests by kind; drop the file and learn again")
        if not ((values[0] <= values[1]).all() and (values[1] <= _MEMORY).all()):
            raise UsageError("state calibration: more hits than tests; drop the file and learn again")
        self._set(values[0], values[1])

    def inherit(self, other: Calibration) -> None:
        """Start from what another one has seen, as from a few tests."""
        share = np.minimum(1.0, _INHERITED / np.maximum(other.tests, _INHERITED))
        self._set(other.hits * share, other.tests * share)

    def blend(self, other: Calibration) -> None:
        """Take in what another one has seen of late."""
        weight = np.where(other.tests > 0, _BLEND, 0.0)
        self._set(self.hits + weight * (other.hits - self.hits), self.tests + weight * (other.tests - self.tests))

    def _set(self, hits: Floats, tests: Floats) -> None:
        self.hits[:], self.tests[:] = hits, tests
        self.estimates[:] = (hits + _PRIOR * _MIDDLES) / (tests + _PRIOR)


class SharedCalibrations:
    """What the drafters of a server's sessions have shown, by drafter. Not for two threads at once."""

    def __init__(self) -> None:
        self._by: dict[str, Calibration] = {}

    def start(self, name: str) -> Calibration:
        """For a new session."""
        own = Calibration()
        own.inherit(self._by.setdefault(name, Calibration()))
        return own

    def add(self, name: str, own: Calibration) -> None:
        """What a session has seen of late."""
        self._by.setdefault(name, Calibration()).blend(own)


def due(calls: int) -> bool:
    """Is what was seen to be shared after so many calls?"""
    return calls % _EVERY == _EVERY // 2


def kind_of(claim: float) -> int:
    """Claims in even steps."""
    return min(BINS - 1, max(0, int(claim * BINS)))
