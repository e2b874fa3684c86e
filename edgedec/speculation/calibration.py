"""Calibration of drafters' claims: how often guesses of one kind came true here, lately.

A drafter claims for each token how likely it is. Claims of about one size are one kind; each kind has a rate of hits
over tests, older tests weighing less, that starts from the claim itself.
"""

from __future__ import annotations

BINS = 24
# How many tests the claim itself counts for, and how many are remembered.
_PRIOR, _MEMORY = 3.0, 48.0


class Calibration:
    """`estimates[kind]`: how likely a guess of this kind comes true; `kind_of(claim)` is from 0 to BINS - 1."""

    def __init__(self) -> None:
        self._hits = [0.0] * BINS
        self._tests = [0.0] * BINS
        self.estimates = [_estimate(_middle(kind), 0.0, 0.0) for kind in range(BINS)]

    def add(self, kind: int, came_true: bool) -> None:
        """A guess was tested: its parent was right, and it was or was not."""
        hits, tests = self._hits[kind] + came_true, self._tests[kind] + 1
        if tests > _MEMORY:
            hits, tests = hits / 2, tests / 2
        self._hits[kind], self._tests[kind] = hits, tests
        self.estimates[kind] = _estimate(_middle(kind), hits, tests)

    @property
    def tests(self) -> float:
        return sum(self._tests)


def kind_of(claim: float) -> int:
    """Claims in even steps."""
    return min(BINS - 1, max(0, int(claim * BINS)))


def _middle(kind: int) -> float:
    return (kind + 0.5) / BINS


def _estimate(claim: float, hits: float, tests: float) -> float:
    return (hits + _PRIOR * claim) / (tests + _PRIOR)
