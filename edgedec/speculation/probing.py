"""Measuring the costs of calls: some calls get more rows than they need, to measure the cost of more rows.

Nothing is measured before the first token, and no extra call is made: now and then a call of a generation is filled up
to a row count that has not been measured, with guesses first. A small share of the elapsed time pays for this, so that
a first generation is hardly slower. The results are saved for this bundle and host.
"""

from __future__ import annotations

from collections.abc import Callable

from edgedec.speculation.costs import Costs
from edgedec.speculation.prices import SURE, chain_length

# Row counts, the coarsest first; in a batch only those up to so many rows more.
COUNTS = (8, 3, 16, 2, 32, 5, 12, 64, 4, 6, 24, 48, 96, 128, 192, 256)
_FURTHER = 64
# The share of the time that measuring may take; the initial and the largest balance, in calls.
_SHARE, _START, _SAVED = 0.01, 2.0, 12.0
# The first counts are measured twice, as noise only adds time; all others lie between or near them. Points that
# contradict one another are measured again.
_TWICE = 3
# The results are saved once so many points are known, and at each further point.
_KEPT = 4


class RowProbe:
    """`keep` is called when there are more points to save."""

    def __init__(self, costs: Costs, keep: Callable[[], None] = lambda: None) -> None:
        self._costs, self._keep = costs, keep
        self._left: float | None = None
        self._asked = False
        self._kept = costs.known + costs.learned
        # By the rows of a call: the row count that is measured next (0: none), and its cost.
        self._next: dict[int, tuple[int, float]] = {}

    def due(self, rows: int, most: int) -> int:
        """The rows that the next call must have instead of `rows`, at most `most`; 0: no change. While a call is due no
        further one is."""
        if self._left is None or self._asked:
            return 0
        wanted, cost = self._next.get(rows) or self._wanted(rows)
        self._asked = 0 < wanted <= most and cost <= self._left
        return wanted if self._asked else 0

    def complete(self, rows: int) -> bool:
        """Whether nothing more is to be measured beside `rows` rows."""
        return (self._next.get(rows) or self._wanted(rows))[0] == 0

    def more(self, rows: int, most: int) -> int:
        """The rows that the next call must have in addition to `rows`, at most `most`; 0: none."""
        return max(self.due(rows, rows + most) - rows, 0) if most > 0 else 0

    def add(self, seconds: float, plain: float) -> None:
        """Add the time of a call, which takes `plain` seconds without extra rows."""
        if self._left is None:
            self._left = _START * plain
        self._left = min(self._left + _SHARE * seconds, _SAVED * plain)
        if self._asked:
            self._left -= min(max(seconds - plain, 0.0), _SAVED * plain)  # more only if another program had the core
            self._asked = False
            self._next.clear()
        known = self._costs.known + self._costs.learned
        if self._costs.known >= _KEPT and known != self._kept:
            self._kept = known
            self._keep()

    def _wanted(self, rows: int) -> tuple[int, float]:
        """The next row count to measure and its cost: unmeasured counts first; counts that cannot pay are left out."""
        costs = self._costs
        if costs.calls(rows) < 2:
            return 0, 0.0
        largest = rows + _FURTHER
        if costs.covers(rows):
            largest = min(largest, rows + 2 * chain_length(SURE, costs, rows) + 2)
        largest = min(largest, costs.most)
        missing = [k for i, k in enumerate(COUNTS) if rows < k <= largest and costs.calls(k) < 1 + (i < _TWICE)]
        doubted = [k for k in costs.doubted if rows < k <= largest]
        best = min(missing or doubted, key=costs.calls, default=0)
        extra = costs.seconds[best] - costs.seconds[rows] if best and costs.covers(rows) else 0.0
        self._next[rows] = best, min(extra, 0.9 * _SAVED * costs.seconds[rows])
        return self._next[rows]
