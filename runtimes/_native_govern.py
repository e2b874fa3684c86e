"""The governor of steps that draft by themselves (`kernels/cpu/govern.cpp`)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import addressof
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgedec.kernels.cpu.drafting_structs import GovernorStruct
from edgedec.runtime import SILENT, StepCosts, StepCounts
from edgedec.runtimes._native_cache import address

# The most drafted rows of a step (ED_DRAFTED).
_DRAFTED = 64


class TextTables(Protocol):
    """The tables of a text in the library."""

    address: int
    calibrations: Any
    seconds: NDArray[Any]

    def unread(self, ids: Sequence[int]) -> array[int]: ...


class NativeGovernor:
    """The tables of one text under the library's governor. state: a bank, an account, a record and an experience of
    `edgedec.speculation`, which have the layout of `api.h`."""

    def __init__(self, group: TextTables, state: Sequence[Any], top: int, enabled: int, named: bool) -> None:
        self.group, n = group, len(group.seconds)
        self._keep, self._seconds = tuple(state), array("d")
        self._by_drafter = np.zeros((2, n), np.int64)
        self._sizes, self._silent = np.zeros(_DRAFTED + 1, np.int64), np.zeros(len(SILENT), np.int64)
        bank, account, record, shared = map(addressof, state)
        self.struct = GovernorStruct(
            group.address,
            addressof(group.calibrations),
            address(group.seconds),
            *map(address, self._by_drafter),
            bank,
            account,
            record,
            shared,
            top=top,
            enabled=enabled,
            named=named,
            sizes=address(self._sizes),
            silent=address(self._silent),
        )
        self.address = addressof(self.struct)
        self._taken = 0, 0.0

    @property
    def sequences(self) -> int:
        return int(self.struct.sequences)

    @sequences.setter
    def sequences(self, n: int) -> None:
        self.struct.sequences = n

    @property
    def seconds(self) -> float:
        return float(self.struct.spent)

    @property
    def drafted(self) -> int:
        return int(self.struct.drafted)

    def renew(self, costs: StepCosts, sequences: int, n_prompt: int, left: int, capacity: int) -> None:
        struct, self._seconds = self.struct, array("d", costs.seconds)
        struct.seconds = self._seconds.buffer_info()[0]
        struct.most = struct.largest = len(costs.seconds) - 1
        struct.per_cell, struct.plain, struct.draft = costs.per_cell, costs.plain, costs.draft
        struct.limit, struct.least = min(costs.limit, _DRAFTED), costs.least
        struct.sequences, struct.prompt, struct.left, struct.capacity = sequences, n_prompt, left, capacity

    def end_among(self, after: int, ties: int) -> None:
        self.struct.after, self.struct.ties = after, ties

    def drain(self) -> StepCounts:
        steps, seconds = self._taken
        self._taken = int(self.struct.steps), self.seconds
        if self._taken[0] == steps:
            return StepCounts(0, 0, [], [], [], [], 0.0, 0.0)
        proposed, accepted = self._by_drafter.tolist()
        found = StepCounts(
            self._taken[0] - steps,
            int(self.struct.length),
            proposed,
            accepted,
            self._sizes.tolist(),
            self._silent.tolist(),
            self.seconds - seconds,
            float(self.struct.expected),
        )
        for counts in (self._by_drafter, self._sizes, self._silent):
            counts[:] = 0
        return found
