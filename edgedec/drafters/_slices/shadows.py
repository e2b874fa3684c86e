"""Exits that did not draft, judged by the rows that were verified: DEL's shadow tokens (S12).

A call leaves the states of its rows after every exit. Each is read as if it had been left there, and compared with the
token that was picked. All of a call's states are one call of the head, or of a draft's readout of it; while that takes
more than its share of the time, fewer calls are read.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np

from edgedec.decoding.messages import Completed, Request
from edgedec.drafters._calls import EdgeCalls
from edgedec.drafters._slices.exit_adapters import ExitAdapter
from edgedec.drafters._slices.stack import TOP, Record, chances
from edgedec.runtime import Hidden, Readout

# Of the time of all calls, so much may go into reading; and of so many states at once.
_SHARE, _MOST = 0.008, 48


class Shadows:
    """States to be read. adapters: of each exit, or None. width: so many guesses of an exit may be right."""

    def __init__(self, edge: EdgeCalls, adapters: Sequence[ExitAdapter | None], width: int = 1) -> None:
        self._edge, self._adapters, self._width = edge, adapters, width
        self._waiting: list[tuple[int, Sequence[Hidden], int]] = []
        self._spent = self._time = 0.0
        self.read = 0

    def passed(self, seconds: float) -> None:
        """A call of the text took so long."""
        self._time += seconds

    @property
    def affordable(self) -> bool:
        """May states be read now?"""
        return self._spent <= _SHARE * self._time

    def add(self, exit_: int, states: Sequence[Hidden], token: int) -> None:
        """After these states [hidden_size] of an exit, one a block that it reads, came `token`."""
        if len(self._waiting) < _MOST:
            self._waiting.append((exit_, states, token))

    def judge(self, records: Sequence[Record], readout: Readout | None) -> Generator[Request, Completed, None]:
        """Read what waits, and say to each exit's record whether it was right and how sure."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        states = [self._adapted(exit_, states) for exit_, states, _ in waiting]
        best = yield from self._edge.best(np.concatenate(states), TOP, readout)
        self._spent += self._edge.seconds
        self.read += len(waiting)
        assert best.ids is not None
        assert best.scores is not None
        for (exit_, _, token), ids, scores in zip(waiting, best.ids.tolist(), best.scores.tolist(), strict=True):
            records[exit_].add(token in ids[: self._width], min(1.0, sum(chances(scores)[: self._width])))

    def forget(self) -> None:
        self._waiting = []

    def _adapted(self, exit_: int, states: Sequence[Hidden]) -> Hidden:
        adapt = self._adapters[exit_]
        return states[-1][None] if adapt is None else adapt.run(*(state[None] for state in states))
