"""The rows of prompts in a call, while other texts wait for their next tokens.

All texts of a batch wait for a call, and prompts make it long. So beside other texts they have as many rows as take no
longer than the call without them, and a fixed time more. Both times are means over the calls that the batch has made:
of calls without rows of prompts, and what each row of a prompt added to the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from edgedec.decoding.scheduler.job import Job
from edgedec.decoding.scheduler.shares import Owner, RowShares
from edgedec.runtime import Capabilities

# The rate of the means, and the most that a call counts in multiples of the mean: another program had the core.
_RATE, _SPIKE = 0.3, 3.0
# The rows of a prompt as long as their time is unknown, and at least: fewer would read the weights for too little.
_FIRST, _LEAST = 32, 8
# The share of the time that is planned for: rows take longer the longer their text is.
_PLANNED = 0.8
# The least share of a call that is due to its rows of prompts.
_SHARE = 0.1


class PromptPace:
    """Which prompts share a call with other texts, in fair shares of their owners, and with how many rows."""

    def __init__(self, pause: float, capabilities: Capabilities) -> None:
        """pause: seconds beyond the time of a call without prompts; 0: no limit."""
        self._largest, self._shares, self._reading = capabilities.largest_call, RowShares(), 0
        self._rows = PromptRowCosts(pause, capabilities.row_buckets) if pause else None

    def most_rows(self, others: int) -> int:
        """The rows of a prompt's next call while so many other sequences run; 0: as the runtime takes them."""
        if self._rows is None or not others:
            return 0
        return max(min(self._rows.most, self._largest - others), 1)

    def choose(self, waiting: dict[Job, int]) -> dict[Job, int]:
        """Those of `waiting`, with their rows, that may share the next call: without the prompts that have to wait for
        a later one, because others wait for their tokens in this one."""
        readers = {job: rows for job, rows in waiting.items() if job.reads} if self._rows is not None else {}
        if self._rows is None or not readers or len(readers) == len(waiting):
            return waiting
        others = sum(waiting.values()) - sum(readers.values())
        room = min(self._rows.most, self._largest - others)
        read = set(self._shares.choose(list(readers), list(readers.values()), room))
        return {job: rows for job, rows in waiting.items() if job in read or job not in readers}

    def begin(self, jobs: Sequence[Job]) -> None:
        """Count the prompts of a call that is about to run."""
        readers = [job for job in jobs if job.reads] if self._rows is not None else []
        if 0 < len(readers) < len(jobs):
            self._shares.note(readers)
        self._reading = sum(job.rows for job in readers)

    def end(self, seconds: float) -> None:
        """Learn from the time of that call."""
        if self._rows is not None:
            self._rows.note(self._reading, seconds)

    def keep(self, owners: Iterable[Owner]) -> None:
        """Forget all but these owners."""
        self._shares.keep(owners)


class PromptRowCosts:
    """`most`: the rows of prompts in a call beside other texts."""

    def __init__(self, pause: float, buckets: Sequence[int] = ()) -> None:
        """pause: seconds beyond the time of a call without prompts; buckets: the row counts that the runtime has, if it
        has no others."""
        self._pause, self._buckets = pause, sorted(buckets)
        self._call = self._row = 0.0
        self.most = self._fitted(_FIRST)

    def note(self, reading: int, seconds: float) -> None:
        """Count a call of so many rows of prompts, besides the rows of other texts."""
        if reading:
            added = max(seconds - self._call, _SHARE * seconds) / reading
            self._row = _mean(self._row, added)
        else:
            self._call = _mean(self._call, seconds)
        if self._row:
            self.most = self._fitted(max(int(_PLANNED * (self._call + self._pause) / self._row), _LEAST))

    def _fitted(self, rows: int) -> int:
        """Not more than `rows`, but for a smallest bucket that is larger."""
        if not self._buckets:
            return rows
        return max((size for size in self._buckets if size <= rows), default=self._buckets[0])


def _mean(mean: float, value: float) -> float:
    return mean + _RATE * (min(value, _SPIKE * mean) - mean) if mean else value
