"""The drafters of a governor: their outputs, statistics, tables and calibrations."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from edgedec.decoding.context import Context
from edgedec.decoding.draft import Drafter, State
from edgedec.decoding.messages import Completed, Request
from edgedec.runtime import CallResult, Outputs, Rows
from edgedec.speculation import members as every
from edgedec.speculation.backoff import DrafterStats
from edgedec.speculation.compiled import compiled_merger
from edgedec.speculation.readers import Readers, joined
from edgedec.speculation.shared import SharedLearning
from edgedec.speculation.silence import Silence

SILENT, OBSERVING, ACTIVE = range(3)
_QUIET = Outputs()


class Governed:
    """`members`: the drafters with their statistics. `shared`: the learning that sessions share."""

    shift = None

    def __init__(self, drafters: Sequence[tuple[str, Drafter]], shared: SharedLearning | None) -> None:
        start = shared.calibrations.start if shared else lambda name: None
        self.members = [DrafterStats(name, drafter, start(name)) for name, drafter in drafters]
        self._readers = Readers([drafter for _, drafter in drafters])
        self._names = [member.name for member in self.members]
        self._shared = shared
        self._sizes: dict[int, int] = {}
        self._phase, self._affords = ACTIVE, True
        self._watching: list[DrafterStats] | None = None
        self._link()

    def _link(self) -> None:
        """Use the drafters' tables as they are now."""
        drafters = [member.drafter for member in self.members]
        self._compiled = compiled_merger(drafters, [member.calibration for member in self.members])
        self._silence = Silence(self._compiled, drafters)

    @property
    def outputs(self) -> Outputs:
        wanted = self._readers.wanted(self._phase == SILENT)
        return wanted if self._phase == SILENT else joined((wanted, *[m.drafter.outputs for m in self._learners()]))

    @property
    def reads(self) -> Outputs:
        return self._readers.reads

    @property
    def prompt_rows(self) -> int:
        return max([m.drafter.prompt_rows for m in self._learners()], default=0)

    def read(self, context: Context, rows: Rows, result: CallResult) -> Generator[Request, Completed, None]:
        return self._readers.read(context, rows, result)

    def _learners(self) -> list[DrafterStats]:
        """The drafters that observe the next call; fixed until it is observed."""
        if self._phase == SILENT:
            return []
        if self._watching is None:
            self._watching = [member for member in self.members if self._observes(member)]
        return self._watching

    def _observes(self, member: DrafterStats) -> bool:
        """Whether a drafter observes the next call. Without budget, a drafter that needs extra outputs only for some
        calls does not."""
        if member.hopeless:
            return False
        affords = self._affords or member.drafter.outputs == _QUIET
        return member.drafter.reads != _QUIET or (affords and not member.backed_off)

    def own_state(self) -> State:
        return every.calibration_states(self.members)

    def state(self) -> State:
        return every.table_states(self.members) | self.own_state()

    def restore(self, state: State) -> None:
        every.restore_all(self.members, state)
        self._link()

    def inherit(self, other: Drafter) -> None:
        if isinstance(other, Governed):
            every.inherit_all(self.members, other.members, self._shared is None)
            self._link()

    def report(self) -> dict[str, Any]:
        return every.reports(self.members, self._silence.calls, self._sizes)
