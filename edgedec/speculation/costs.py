"""What a forward costs on this host: seconds(rows, context), learned from the calls that are made.

    seconds = curve(rows) + per_cell · (the cached tokens before the rows, as `allocation.text_cells` counts them)

The curve decides how much drafting can pay: where eight rows cost what one costs, wide trees are free; where they cost
eight times as much, nothing is. It is a line through measured points. Every call of whole stacks corrects the points
beside its number of rows, and all others less: the host may have changed for all. `per_cell` is the slope of a
regression over the last calls. Points that are missing are made by a `survey`.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from threading import Lock

import numpy as np

from edgedec.speculation.finds import Finds
from edgedec.speculation.outside import Usual

# How fast a point follows what is measured, and all others; one outlier counts as no more than a factor of two.
_RATE, _SHARED, _WILD = 0.15, 0.08, 0.7
# A new point is compared with so many calls before it: what slowed those down slowed it down as well.
_LATELY = 5
# A point that the curve leaves by more than this is doubtful until so many calls have shown it.
_DOUBT, _SETTLED = 0.15, 6
# A call takes at most so many times as long as calls of fewer rows for as many.
_FAR = 2.0
# The curve is written anew when it is off by so much, or by more before so many calls.
_STEP, _LEAP, _SELDOM = 0.05, 0.25, 8
# Of the regression: how much of the past counts at each call, how strongly the slope is held, the factor beyond which a
# call was disturbed, and the factor within which the slope stays of what it was at first.
_KEEP, _HOLD, _ODD, _WITHIN = 0.99, 0.002, 3.0, 8.0
# The same factor where arithmetic says what a cell adds; and a call without its text is at least such a share of it.
_WITHIN_ARITHMETIC, _LEAST = 3.0, 0.2
# What cells take at least, as a share of a call that took less than they were to take.
_FLAT = 0.02
# A call so much slower or quicker than expected says nothing of the slope.
_DISTURBED = 1.5
# A call is of a point if its rows differ by less; a new point is the least of so many calls, for noise only ever adds.
_NEAR, _FIRST = 0.12, 2
# A point weighs as many calls as it was corrected by, so many at most.
_REMEMBERED = 50
# Beyond the last point a row costs what it did before it, and a little more.
_BEYOND = 1.2


class Costs:
    """`seconds[k]` of a call of k rows after no text, k from 1 to `most`; `per_cell`: what each cached token adds to
    a row alone; `usual`: what passes outside of calls; `finds`: what looks in silence brought. Sessions of one runtime
    share one, in any threads."""

    def __init__(self, measured: Mapping[int, float], per_cell: float = 0.0, largest: int = 0) -> None:
        """measured: seconds by rows; largest: the most rows of a call, if they are more."""
        self._rows = sorted(measured)
        self._points = [measured[k] for k in self._rows]
        self._calls = [_FIRST] * len(self._rows)
        self._most = max(largest, *self._rows, 1) if self._rows else max(largest, 1)
        self._lock = Lock()
        self._scale, self._drift, self._last, self._slope = 1.0, 0.0, 0.0, Slope()
        self._unwritten = 0
        self.usual, self.finds = Usual(), Finds()
        self._lately, self._doubted = deque[float](maxlen=_LATELY), list[int]()
        self.per_cell, self.seconds, self._arithmetic = per_cell, [0.0], per_cell
        # What `per_cell` is likely to be, in calls of one row; 0: that is not known.
        self.cell_calls = 0.0
        self._write()

    @property
    def most(self) -> int:
        """The most rows of a call."""
        return self._most

    def points(self) -> dict[int, float]:
        """What was measured, by rows."""
        with self._lock:
            return {k: point * self._scale for k, point in zip(self._rows, self._points, strict=True)}

    @property
    def known(self) -> int:
        """How many points were measured."""
        return len(self._rows)

    def covers(self, rows: int) -> bool:
        """Is it known what more than so many rows cost?"""
        return len(self._rows) > 1 and self._rows[0] <= rows < self._rows[-1]

    def calls(self, rows: int) -> int:
        """How often a call of about so many rows was measured, as far as that matters."""
        with self._lock:
            at = self._near(rows)
            return self._calls[at] if at >= 0 else 0

    @property
    def doubted(self) -> list[int]:
        """Rows whose few calls do not fit those of more or fewer rows: one of them was disturbed."""
        with self._lock:
            calls = dict(zip(self._rows, self._calls, strict=True))
            return [rows for rows in self._doubted if calls[rows] < _SETTLED]

    def row(self, rows: int, more: int) -> float:
        """What each of `more` rows adds to a call of `rows`."""
        last = len(self.seconds) - 1
        low = min(rows, last)
        high = min(rows + more, last)
        return (self.seconds[high] - self.seconds[low]) / (high - low) if high > low else 0.0

    def add(self, rows: int, seconds: float, cells: int = 0) -> bool:
        """A call of so many rows after so many cells took so long. The sequences that share it all say so: False if it
        was counted before."""
        if seconds == self._last:
            return False
        self._last = seconds
        if 1 <= rows <= self._most and seconds > 0:
            with self._lock:
                self._add(rows, seconds, cells)
        return True

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
        """Calls whose rows all have the same context cannot tell the slope from the curve: it stays near what
        arithmetic says, or what it was at first."""
        near, within = self._arithmetic, _WITHIN
        if self.cell_calls:
            near, within = self.cell_calls * self.seconds[1], _WITHIN_ARITHMETIC
        self.per_cell = max(near / within, min(near * within, found))

    def _lower(self, rows: int, seconds: float, cells: int) -> None:
        """A call took far less than its text was to take: it attends to a part of that, whatever arithmetic says."""
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
        """The place of the point next to `rows`; -1: there is none."""
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
        """The curve through the points: straight lines between them, made to rise, for more rows never cost less:
        points that fall are taken together, those of more calls weighing more."""
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
    """The points, none far above what calls of fewer rows would take for as many, into which it could be split.

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
    """What a cell adds, by least squares of seconds = a · curve + b · cells over the last calls, relative errors
    counting; a is not used: the curve is corrected by itself."""

    def __init__(self) -> None:
        self._cc = self._cx = self._xx = self._cy = self._xy = 0.0

    def add(self, curve: float, cells: int, seconds: float, b: float) -> float:
        """One more call; returns b, which moves away from what it was only as far as the calls say so."""
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
