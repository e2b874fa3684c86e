"""Which calls are made larger than they need to be, so that the cost of more rows is known.

Nothing is measured before the first token, and no call is made for it: now and then a call of a generation gets as many
rows as have not been measured, guesses first. The time that this takes is paid from a small share of the time that
passed, so that a first generation is hardly slower for it. What is known is kept for this bundle and host.
"""

from __future__ import annotations

from collections.abc import Callable

from edgedec.speculation.costs import Costs
from edgedec.speculation.selection import SURE, chain_length

# The coarsest first; of calls in company those up to so many rows more.
COUNTS = (8, 3, 16, 2, 32, 5, 12, 64, 4, 6, 24, 48, 96, 128, 192, 256)
_FURTHER = 64
# The share of the time that measuring may take; what it may take at the start, and what is saved up, in calls.
_SHARE, _START, _SAVED = 0.01, 2.0, 12.0
# So many of the counts are measured twice, for noise only ever adds: all others lie between or near them. Points that
# contradict one another are measured again.
_TWICE = 3
# It is kept when so many points are known, and whenever there are more.
_KEPT = 4


class Survey:
    """`keep` is called when more is known."""

    def __init__(self, costs: Costs, keep: Callable[[], None] = lambda: None) -> None:
        self._costs, self._keep = costs, keep
        self._left: float | None = None
        self._asked = False
        self._kept = costs.known
        # By the rows of a call: those that are measured next (0: none), and what that costs.
        self._next: dict[int, tuple[int, float]] = {}

    def due(self, rows: int, most: int) -> int:
        """The rows that the next call is to have instead of `rows`, at most `most`; 0: no others. While a call is due
        no further one is."""
        if self._left is None or self._asked:
            return 0
        wanted, cost = self._next.get(rows) or self._wanted(rows)
        self._asked = 0 < wanted <= most and cost <= self._left
        return wanted if self._asked else 0

    def more(self, rows: int, most: int) -> int:
        """The rows that the next call is to have more than `rows`, at most `most`; 0: none."""
        return max(self.due(rows, rows + most) - rows, 0) if most > 0 else 0

    def add(self, seconds: float, plain: float) -> None:
        """A call took `seconds`, where `plain` would have done."""
        if self._left is None:
            self._left = _START * plain
        self._left = min(self._left + _SHARE * seconds, _SAVED * plain)
        if self._asked:
            self._left -= min(max(seconds - plain, 0.0), _SAVED * plain)  # longer only where the core was taken away
            self._asked = False
            self._next.clear()
        known = self._costs.known
        if known >= _KEPT and known != self._kept:
            self._kept = known
            self._keep()

    def _wanted(self, rows: int) -> tuple[int, float]:
        """Those that were never measured first; what cannot pay is not measured."""
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
