"""The rows of prompts in a call, while other texts wait for their next tokens.

All texts of a batch wait for a call, and prompts make it long. So beside other texts they have as many rows as take no
longer than the call without them, and a fixed time more. Both times are means over the calls that the batch has made:
of calls without rows of prompts, and what each row of a prompt added to the others.
"""

from __future__ import annotations

from collections.abc import Sequence

# The rate of the means, and the most that a call counts in multiples of the mean: another program had the core.
_RATE, _SPIKE = 0.3, 3.0
# The rows of a prompt as long as their time is unknown, and at least: fewer would read the weights for too little.
_FIRST, _LEAST = 32, 8
# The share of the time that is planned for: rows take longer the longer their text is.
_PLANNED = 0.8
# The least share of a call that is due to its rows of prompts.
_SHARE = 0.1


class Pace:
    """`rows`: the most rows of prompts in a call beside other texts."""

    def __init__(self, pause: float, buckets: Sequence[int] = ()) -> None:
        """pause: seconds beyond the time of a call without prompts; buckets: the row counts that the runtime has, if it
        has no others."""
        self._pause, self._buckets = pause, sorted(buckets)
        self._call = self._row = 0.0
        self.rows = self._fitted(_FIRST)

    def note(self, reading: int, seconds: float) -> None:
        """Count a call of so many rows of prompts, besides the rows of other texts."""
        if reading:
            added = max(seconds - self._call, _SHARE * seconds) / reading
            self._row = _mean(self._row, added)
        else:
            self._call = _mean(self._call, seconds)
        if self._row:
            self.rows = self._fitted(max(int(_PLANNED * (self._call + self._pause) / self._row), _LEAST))

    def _fitted(self, rows: int) -> int:
        """Not more than `rows`, but for a smallest bucket that is larger."""
        if not self._buckets:
            return rows
        return max((size for size in self._buckets if size <= rows), default=self._buckets[0])


def _mean(mean: float, value: float) -> float:
    return mean + _RATE * (min(value, _SPIKE * mean) - mean) if mean else value
