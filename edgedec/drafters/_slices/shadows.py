"""Evaluation of unused exits on verified rows: DEL's shadow tokens.

A call returns the states of its rows after every exit. The head reads each state as if the row had exited there, and
its token is compared with the picked one. All states of a call are one call of the head, or of a draft's readout; while
that exceeds its share of the time, fewer calls are evaluated."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np

from edgedec.decoding.messages import Completed, Request
from edgedec.drafters._calls import EdgeCalls
from edgedec.drafters._slices.exit_adapters import ExitAdapter
from edgedec.drafters._slices.stack import TOP, Record, chances
from edgedec.runtime import Hidden, Readout

# The share of all calls' time that reading may take; the most states at once.
_SHARE, _MOST = 0.008, 48


class Shadows:
    """States to be read. adapters: of each exit, or None. width: the number of guesses of an exit that are compared."""

    def __init__(self, edge: EdgeCalls, adapters: Sequence[ExitAdapter | None], width: int = 1) -> None:
        self._edge, self._adapters, self._width = edge, adapters, width
        self._waiting: list[tuple[int, Sequence[Hidden], int]] = []
        self._spent = self._time = 0.0
        self.read = 0

    def passed(self, seconds: float) -> None:
        """Add the time of a call of the text."""
        self._time += seconds

    @property
    def affordable(self) -> bool:
        """Whether states may be read now."""
        return self._spent <= _SHARE * self._time

    def add(self, exit_: int, states: Sequence[Hidden], token: int) -> None:
        """Add the states [hidden_size] of an exit, one per block that it reads, and the `token` that followed them."""
        if len(self._waiting) < _MOST:
            self._waiting.append((exit_, states, token))

    def judge(self, records: Sequence[Record], readout: Readout | None) -> Generator[Request, Completed, None]:
        """Read the waiting states, and add to each exit's record whether it was right and its confidence."""
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
