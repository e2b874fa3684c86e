"""Drafters that have to be shown every call, whether or not they draft: heads that read the target's states."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import lru_cache, reduce
from operator import or_

from edgedec.decoding.context import Context
from edgedec.decoding.draft import Drafter
from edgedec.decoding.messages import Completed, Request, StepResult
from edgedec.runtime import CallResult, Outputs, Rows

# After so many silent calls at most they are shown none until drafts pay again: they then begin anew, with what comes.
_PATIENCE = 64
_NONE = Outputs()


@lru_cache(1024)
def joined(outputs: tuple[Outputs, ...]) -> Outputs:
    """What any of them names: at most calls the same drafters learn as at the one before."""
    return reduce(or_, outputs, _NONE)


class Readers:
    """Those among some drafters. reads: what any of them has to be shown."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self._all = [drafter for drafter in drafters if drafter.reads != _NONE]
        self._idle, self._patience = 0, _PATIENCE
        self.leave_out(())

    def leave_out(self, drafters: Sequence[Drafter]) -> None:
        """These are shown nothing until it is said otherwise."""
        self._drafters = [drafter for drafter in self._all if drafter not in drafters]
        self.reads = joined(tuple(drafter.reads for drafter in self._drafters))

    @property
    def any(self) -> bool:
        """Is any of them shown calls?"""
        return bool(self._drafters)

    def limit(self, call: float, seconds: float) -> None:
        """They take `seconds` to learn of a call, which takes `call`: in silence they spend no more than that."""
        self._patience = min(_PATIENCE, int(call / seconds)) if seconds > 0 else _PATIENCE

    def wanted(self, silent: bool) -> Outputs:
        """What they are shown of the next call; silent: nothing is drafted in it."""
        if not self._drafters:
            return _NONE
        self._idle = self._idle + 1 if silent else 0
        return self.reads if self._idle <= self._patience else _NONE

    def read(self, context: Context, rows: Rows, result: CallResult) -> Generator[Request, Completed, None]:
        """Show them a chunk of a prompt."""
        for drafter in self._drafters:
            if (reading := drafter.read(context, rows, result)) is not None:
                yield from reading

    def observe(self, step: StepResult) -> None:
        """Show them a verified call in which nothing was drafted."""
        for drafter in self._drafters if self._idle <= self._patience else ():
            drafter.observe(step)
