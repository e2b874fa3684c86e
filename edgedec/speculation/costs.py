"""The cost of a forward on this host: seconds(rows, context), learned from the calls that are made.

    seconds = curve(rows) + per_cell · (the cached tokens before the rows, as `allocation.text_cells` counts them)

The curve decides how much drafting can pay: if eight rows cost as much as one, wide trees are free; if they cost eight
times as much, no draft pays. It is a polyline through measured points. Every call of the whole stack corrects the
points next to its number of rows, and all others less, as the host's speed may have changed for all. `per_cell` is the
slope of a regression over the last calls. A row probe measures missing points.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from threading import Lock

import numpy as np

from edgedec.decoding.host_time import BetweenCalls
from edgedec.speculation.bank import TRIAL, Experience

# The rates at which a point, and all others, follow a measurement; the largest log error that counts (a factor of two).
_RATE, _SHARED, _WILD = 0.15, 0.08, 0.7
# A new point is corrected by the errors of this many calls before it, which the same slowdown affected.
_LATELY = 5
# A point farther than this from the curve is doubtful until it was measured by so many calls.
_DOUBT, _SETTLED = 0.15, 6
# The most that a point may cost, relative to the same rows in smaller calls.
_FAR = 2.0
# The curve is recomputed after a drift of _STEP, or of _LEAP before _SELDOM calls have passed.
_STEP, _LEAP, _SELDOM = 0.05, 0.25, 8
# Of the regression: the decay per call, the weight that holds the slope, the factor beyond which a call counts as
# disturbed, and the largest factor between the slope and its first value.
_KEEP, _HOLD, _ODD, _WITHIN = 0.99, 0.002, 3.0, 8.0
# The same factor where the slope is estimated from multiply-adds; the least share of a call that is not its text.
_WITHIN_ARITHMETIC, _LEAST = 3.0, 0.2
# The least share of cells in a call that took less time than expected of its cells alone.
_FLAT = 0.02
# A call slower or quicker than expected by this factor is left out of the slope.
_DISTURBED = 1.5
# A call belongs to a point if its rows differ by less than this share; a new point is the minimum of so many calls, as
# noise only adds time.
_NEAR, _FIRST = 0.12, 2
# The weight of a point is the number of calls that corrected it, up to this.
_REMEMBERED = 50
# Of calls that were made without Python and without drafts, one in so many seconds is learned from.
_PAUSE = 0.01
# After the last point a row costs the slope before it, times this.
_BEYOND = 1.2


class Costs:
    """`seconds[k]`: of a call of k rows after an empty text, k from 1 to `most`; `per_cell`: the seconds that each
    cached token adds to a single row; `between`: the time between calls; `experiences`: of heads and
    draft models, by name. Sessions of one runtime share one, in any
    threads."""

    def __init__(self, measured: Mapping[int, float], per_cell: float = 0.0, largest: int = 0) -> None:
        """measured: seconds by rows; largest: the most rows of a call, if they are more."""
        self._rows = sorted(measured)
        self._points = [measured[k] for k in self._rows]
        self._calls = [_FIRST] * len(self._rows)
        self._most = max(largest, *self._rows, 1) if self._rows else max(largest, 1)
        self._lock = Lock()
        self._scale, self._drift, self._last, self._slope = 1.0, 0.0, 0.0, Slope()
        self._unwritten, self._passed = 0, 0.0
        self.between, self.experiences = BetweenCalls(), dict[str, Experience]()
        self._lately, self._doubted = deque[float](maxlen=_LATELY), list[int]()
        self.per_cell, self.seconds, self._arithmetic = per_cell, [0.0], per_cell
        # The estimate of `per_cell` in calls of one row; 0: unknown.
        self.cell_calls = 0.0
        self._write()

    def experience(self, name: str) -> Experience:
        """What the drafter of this name took and brought."""
        return self.experiences.setdefault(name, Experience())

    @property
    def learned(self) -> int:
        """The number of drafters whose proposals are known."""
        return sum(each.n >= TRIAL for each in self.experiences.values())

    @property
    def most(self) -> int:
        """The most rows of a call."""
        return self._most

    def points(self) -> dict[int, float]:
        """The measured seconds by rows."""
        with self._lock:
            return {k: point * self._scale for k, point in zip(self._rows, self._points, strict=True)}

    @property
    def known(self) -> int:
        """The number of measured points."""
        return len(self._rows)

    def covers(self, rows: int) -> bool:
        """Whether the costs of `rows` rows and of more are measured."""
        return len(self._rows) > 1 and self._rows[0] <= rows < self._rows[-1]

    def at_least(self, rows: int) -> float:
        """The seconds that a call of `rows` rows takes at least, where calls of some number of rows are measured."""
        return self.seconds[min(rows, self._rows[-1], self._most)]

    def calls(self, rows: int) -> int:
        """The number of measured calls of about so many rows, up to a limit."""
        with self._lock:
            at = self._near(rows)
            return self._calls[at] if at >= 0 else 0

    @property
    def doubted(self) -> list[int]:
        """Row counts whose few measurements contradict those of more or fewer rows: one of them was disturbed."""
        with self._lock:
            calls = dict(zip(self._rows, self._calls, strict=True))
            return [rows for rows in self._doubted if calls[rows] < _SETTLED]

    def row(self, rows: int, more: int) -> float:
        """The seconds that each of `more` rows adds to a call of `rows` rows."""
        last = len(self.seconds) - 1
        low = min(rows, last)
        high = min(rows + more, last)
        return (self.seconds[high] - self.seconds[low]) / (high - low) if high > low else 0.0

    def add(self, rows: int, seconds: float, cells: int = 0) -> bool:
        """Add the seconds of a call of `rows` rows after `cells` cached tokens. All sequences that share a call report
        it: returns False if it was counted before."""
        if seconds == self._last:
            return False
        self._last = seconds
        if 1 <= rows <= self._most and seconds > 0:
            with self._lock:
                self._add(rows, seconds, cells)
        return True

    def add_step(self, rows: int, seconds: float, cells: int, plain: bool) -> bool:
        """As `add`, of a call that was made without Python. Of those without drafts (`plain`) only the first after a
        pause counts, however long it takes: the one in which the pause ends would mostly be one that was disturbed."""
        if seconds == self._last:
            return False
        if plain and self._passed < _PAUSE:
            self._passed, self._last = self._passed + seconds, seconds
            return False
        self._passed = 0.0
        return self.add(rows, seconds, cells)

    def _add(self, rows: int, seconds: float, cells: int) -> None:
        at = self._near(rows)
        if at < 0 or self._calls[at] < _FIRST:
            self._new_point(at, rows, max(seconds - self.per_cell * cells, _LEAST * seconds))
            return
        if cells and self._arithmetic:
            self._bound(self._slope.add(self.seconds[rows], cells, seconds, self.per_cell))
            if self.per_cell * cells > seconds:
                self._lower(rows, seconds, cells)
        self._correct(rows, seconds, self.per_cell * cells)

    def _bound(self, found: float) -> None:
        """Set the slope within bounds. Calls of equal contexts cannot separate the slope from the curve, so it stays
        near the estimate by multiply-adds, or near its first value."""
        near, within = self._arithmetic, _WITHIN
        if self.cell_calls:
            near, within = self.cell_calls * self.seconds[1], _WITHIN_ARITHMETIC
        self.per_cell = max(near / within, min(near * within, found))

    def _lower(self, rows: int, seconds: float, cells: int) -> None:
        """Lower the slope after a call that took less than expected of its text alone: it attends to only a part of the
        text."""
        self.per_cell = self._arithmetic = max(seconds - self.seconds[rows], _FLAT * seconds) / cells
        self.cell_calls, self._slope = 0.0, Slope()

    def _correct(self, rows: int, seconds: float, text: float) -> None:
        whole = self.seconds[rows] + text
        wrong = max(-_WILD, min(_WILD, math.log(seconds / whole)))
        self.per_cell *= math.exp(_SHARED * wrong * text / whole)
        wrong *= 1 - text / whole
        self._scale *= math.exp(_SHARED * wrong)
        self._lately.append(wrong)
        high = bisect_left(self._rows, rows)
        if high < len(self._rows) and self._rows[high] == rows:
            beside = {high}
        else:
            beside = {max(high - 1, 0), min(high, len(self._rows) - 1)}
        for at in beside:
            rate = max(_RATE, 1 / (self._calls[at] + 1)) if self._rows[at] == rows else _RATE
            self._points[at] *= math.exp((rate - _SHARED) * wrong)
            self._calls[at] = min(self._calls[at] + 1, _REMEMBERED)
        self._drift += _RATE * wrong
        if rows == 1:
            self.seconds[1] = self._points[0] * self._scale
        self._unwritten += 1
        if abs(self._drift) > (_STEP if self._unwritten >= _SELDOM else _LEAP):
            self._write()

    def _near(self, rows: int) -> int:
        """The index of the point nearest to `rows`; -1 if there is none."""
        known = self._rows
        at = bisect_left(known, rows)
        if at < len(known) and known[at] == rows:
            return at
        beside = [i for i in (at - 1, at) if 0 <= i < len(known) and abs(known[i] - rows) <= _NEAR * rows]
        return min(beside, key=lambda i: abs(known[i] - rows), default=-1)

    def _new_point(self, at: int, rows: int, seconds: float) -> None:
        if self._lately:
            seconds *= math.exp(-sorted(self._lately)[len(self._lately) // 2])
        if at >= 0 and self._rows[at] == rows:
            self._points[at] = min(self._points[at], seconds / self._scale)
            self._calls[at] += 1
        else:
            at = bisect_right(self._rows, rows)
            self._rows.insert(at, rows)
            self._points.insert(at, seconds / self._scale)
            self._calls.insert(at, 1)
        self._write()
        if not self.per_cell:
            self.per_cell = self._arithmetic = self.cell_calls * self.seconds[1]

    def _write(self) -> None:
        """Recompute the curve: straight lines between the points, made monotonic because more rows never cost less.
        Points that fall are merged into a mean weighted by their calls."""
        self._drift, self._unwritten = 0.0, 0
        if not self._rows:
            return
        rows, rising = list(self._rows), _rising(_split(self._rows, self._points), self._calls)
        off = [abs(point / mean - 1) for point, mean in zip(self._points, rising, strict=True)]
        self._doubted = [k for k, wrong in zip(rows, off, strict=True) if wrong > _DOUBT]
        points = [point * self._scale for point in rising]
        if rows[0] > 1:  # at least a half of the first point is reading the weights
            rows, points = [1, *rows], [points[0] * (0.5 + 0.5 / rows[0]), *points]
        if rows[-1] < self._most:
            slope = (points[-1] - points[-2]) / (rows[-1] - rows[-2]) if len(rows) > 1 else points[-1]
            points.append(points[-1] + _BEYOND * max(slope, 0.0) * (self._most - rows[-1]))
            rows.append(self._most)
        curve = np.interp(np.arange(1, self._most + 1), rows, points)
        self.seconds[1:] = curve.tolist()


def _split(rows: Sequence[int], points: Sequence[float]) -> list[float]:
    """The points, each limited to a multiple of the time of several smaller calls with as many rows in all.

    Worked example: 1.0 for 1 row, 1.5 for 2, 9.0 for 4, with a factor of 2 -> 1.0, 1.5, 6.0
    """
    found: list[float] = []
    least = math.inf  # seconds a row
    for k, point in zip(rows, points, strict=True):
        found.append(min(point, _FAR * k * least))
        least = min(least, found[-1] / k)
    return found


def _rising(points: Sequence[float], weights: Sequence[int]) -> list[float]:
    """The points as a curve that never falls, by least squares (pool adjacent violators).

    Worked example: 1, 4, 2 of weights 1, 1, 3 -> 1, 2.5, 2.5
    """
    pools: list[tuple[float, int, int]] = []  # mean, weight, points
    for point, weight in zip(points, weights, strict=True):
        pool = (point, max(weight, 1), 1)
        while pools and pools[-1][0] > pool[0]:
            mean, more, n = pools.pop()
            total = more + pool[1]
            pool = ((mean * more + pool[0] * pool[1]) / total, total, n + pool[2])
        pools.append(pool)
    return [mean for mean, _, n in pools for _ in range(n)]


class Slope:
    """The seconds per cell, by least squares of seconds = a · curve + b · cells over the last calls, with relative
    errors; a is not used, as the curve is corrected separately."""

    def __init__(self) -> None:
        self._cc = self._cx = self._xx = self._cy = self._xy = 0.0

    def add(self, curve: float, cells: int, seconds: float, b: float) -> float:
        """Add a call; returns the new b, regularised towards its old value."""
        c, x = curve / seconds, cells / seconds
        if not (1 / _ODD < c < _ODD and 1 / _DISTURBED < c + b * x < _DISTURBED):
            return b
        keep = _KEEP
        self._cc, self._cx, self._xx = keep * self._cc + c * c, keep * self._cx + c * x, keep * self._xx + x * x
        self._cy, self._xy = keep * self._cy + c, keep * self._xy + x
        hold = _HOLD * self._xx
        xx, xy = self._xx + hold, self._xy + hold * b
        found = (self._cc * xy - self._cx * self._cy) / (self._cc * xx - self._cx * self._cx)
        return max(found, 0.0)
