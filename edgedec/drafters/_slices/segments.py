"""A stack that is run in segments, each only as far as it is needed: rows that left early wait before a segment, and
run through it together when a later row has to."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np

from edgedec.decoding.context import Context
from edgedec.decoding.messages import Completed, Request
from edgedec.runtime import Call, Hidden, Outputs, Rows


class Segments:
    """The pending rows of a text, and a chain below them. ends: the block after each segment; `states`: after each
    segment, of the rows [n, hidden_size] that have passed it.

    rows 0 to 2 through segment 0, row 0 through segment 1: `after(1)` runs rows 1 and 2 through segment 1
    """

    def __init__(self, context: Context, ends: Sequence[int]) -> None:
        self._context, self._ends = context, ends
        self._tokens, self._start = context.pending(), context.cache.length
        self.states: list[Hidden | None] = [None] * len(ends)

    def add(self, token: int) -> None:
        """Another row, below the last."""
        self._tokens = [*self._tokens, token]

    def after(self, segment: int) -> Generator[Request, Completed, Hidden]:
        """The last row's state [1, hidden_size] after this segment; all rows pass the segments before it first."""
        for i in range(segment + 1):
            yield from self._run(i)
        found = self.states[segment]
        assert found is not None
        return found[-1:]

    def _run(self, i: int) -> Generator[Request, Completed, None]:
        """Run the rows that wait before segment i."""
        passed = self.states[i]
        first, n = 0 if passed is None else len(passed), len(self._tokens)
        if first == n:
            return
        entering = None if i == 0 else self.states[i - 1]
        begin, end = 0 if i == 0 else self._ends[i - 1], self._ends[i]
        places = np.arange(self._start, self._start + n)
        rows = Rows(np.asarray(self._tokens, np.int64), places, np.arange(-1, n - 1), first=first)
        hidden = None if entering is None else entering[first:]
        context, wanted = self._context, Outputs(hidden=(end - 1,))
        done = yield Call(rows, context.cache, range(begin, end), hidden, wanted, context.adapter)
        fresh = done.result.hidden[end - 1]
        self.states[i] = fresh if passed is None else np.concatenate([passed, fresh])
