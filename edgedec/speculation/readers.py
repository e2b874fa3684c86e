"""Drafters that read every call, whether or not they draft: heads that need the target's hidden states."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import lru_cache, reduce
from operator import or_

from edgedec.decoding.context import Context
from edgedec.decoding.draft import Drafter
from edgedec.decoding.messages import Completed, Request, StepResult
from edgedec.runtime import CallResult, Outputs, Rows

# The most silent calls that they read; after that they read none until drafts pay again, and then start from the new
# calls.
_PATIENCE = 64
_NONE = Outputs()


@lru_cache(1024)
def joined(outputs: tuple[Outputs, ...]) -> Outputs:
    """The union of outputs; cached, because mostly the same drafters learn as at the call before."""
    return reduce(or_, outputs, _NONE)


class Readers:
    """The drafters that read every call. reads: the union of their outputs."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self._all = [drafter for drafter in drafters if drafter.reads != _NONE]
        self._idle, self._patience = 0, _PATIENCE
        self.leave_out(())

    def leave_out(self, drafters: Sequence[Drafter]) -> None:
        """Exclude these drafters from reading until the next such call."""
        self._drafters = [drafter for drafter in self._all if drafter not in drafters]
        self.reads = joined(tuple(drafter.reads for drafter in self._drafters))

    @property
    def any(self) -> bool:
        """Whether any drafter reads calls."""
        return bool(self._drafters)

    def limit(self, call: float, seconds: float) -> None:
        """Limit the silent calls that are read so that their learning, `seconds` each, takes no more than one call
        (`call` seconds)."""
        self._patience = min(_PATIENCE, int(call / seconds)) if seconds > 0 else _PATIENCE

    def wanted(self, silent: bool) -> Outputs:
        """The outputs of the next call that they read; silent: the call has no drafts."""
        if not self._drafters:
            return _NONE
        self._idle = self._idle + 1 if silent else 0
        return self.reads if self._idle <= self._patience else _NONE

    def read(self, context: Context, rows: Rows, result: CallResult) -> Generator[Request, Completed, None]:
        """Pass a chunk of a prompt to them."""
        for drafter in self._drafters:
            if (reading := drafter.read(context, rows, result)) is not None:
                yield from reading

    def observe(self, step: StepResult) -> None:
        """Pass a verified call without drafts to them."""
        for drafter in self._drafters if self._idle <= self._patience else ():
            drafter.observe(step)
