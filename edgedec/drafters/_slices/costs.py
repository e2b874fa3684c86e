"""The cost of a call of a part of the stack, learned from the calls that are made.

seconds = unit * (a * blocks + b * head + c + d * (blocks + head) * (rows - 1))

`blocks`, `head`: shares of the multiply-adds of a call of the whole stack. The prior is proportional to these shares (a
= b = 1, c = 0), with a low cost of further rows; measurements outweigh it after a few calls, and decay slowly.
"""

from __future__ import annotations

import numpy as np

from edgedec.drafters._slices.stack import block_costs
from edgedec.spec import ModelSpec

_PRIOR = np.array([1.0, 1.0, 0.0, 0.04])
# The weight of the prior, in calls.
_TRUST = np.diag([4.0, 4.0, 400.0, 40.0])
_FORGET, _WILD = 0.98, 2.0


class SliceCosts:
    """Seconds of calls, by the share of blocks and of the head, and by rows."""

    def __init__(self, spec: ModelSpec) -> None:
        blocks, self.head = block_costs(spec)
        self._upto = np.concatenate([[0.0], np.cumsum(blocks)]).tolist()
        self._unit, self._terms = 0.0, _PRIOR
        self._squares, self._sums, self._stale = np.zeros((4, 4)), np.zeros(4), False

    @property
    def plain(self) -> float:
        """Seconds of a call of one row."""
        return self.seconds(self._upto[-1], self.head, 1)

    def blocks(self, start: int, stop: int) -> float:
        """The share of blocks start to stop - 1."""
        found: float = self._upto[stop] - self._upto[start]
        return found

    def add(self, blocks: float, head: float, rows: int, seconds: float) -> None:
        """Add the time of a call of these shares."""
        if seconds <= 0 or blocks + head <= 0:
            return
        x = _terms(blocks, head, rows)
        if not self._unit:
            self._unit = seconds / float(_PRIOR @ x)
        expected = max(float(self._terms @ x), 1e-6)
        took = min(seconds / self._unit, expected * _WILD)
        # Errors are relative to a call's cost, so that long calls do not weigh more.
        x = x / expected
        self._squares = _FORGET * self._squares + np.outer(x, x)
        self._sums = _FORGET * self._sums + x * (took / expected)
        self._stale = True

    def seconds(self, blocks: float, head: float, rows: int) -> float:
        """The expected seconds of a call of these shares; in plain calls while nothing was measured."""
        if self._stale:
            self._terms = np.linalg.solve(self._squares + _TRUST, self._sums + _TRUST @ _PRIOR)
            self._stale = False
        x = _terms(blocks, head, rows)
        return (self._unit or 1.0) * max(float(self._terms @ x), 0.1 * (blocks + head))


def _terms(blocks: float, head: float, rows: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([blocks, head, 1.0, (blocks + head) * (rows - 1)])
