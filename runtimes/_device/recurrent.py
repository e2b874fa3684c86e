"""The state of a recurrent block (state space, short convolution, delta rule) for one text on a device: the committed
state, the inputs of pending rows, and a few checkpoints for truncation (`kernels/cpu/recurrent.h`).

A row's state is that of its parent with the row's inputs applied. One pending state is kept, that after the last
computed row; any other is recomputed from the state before the tree by the same operations. All pieces can be swapped
out while no step needs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgedec.errors import UsageError
from edgedec.kernels.device import state_structs, structs
from edgedec.kernels.device.interface import Buffer, Device
from edgedec.runtime import Rows
from edgedec.runtimes._device.pieces import DevicePiece, PieceMemory
from edgedec.spec import Conv, Delta, ModelSpec, Ssm

# As in the native engine: a commit of at least this many rows makes a checkpoint; so many checkpoints are kept.
_WORTH, _KEPT = 16, 4
_THREADS = 32
Recurring = Conv | Delta | Ssm


@dataclass(frozen=True)
class StateCheckpoint:
    length: int
    slots: int
    value: DevicePiece


class DeviceRecurrent:
    """The state of one block for one text. `length`: the position after the last committed token; slots: committed
    tokens.

    A piece holds a state, then the last rows before their convolution. A committed piece is never written again.
    """

    def __init__(self, device: Device, memory: PieceMemory, block: Recurring) -> None:
        self._device, self._memory, self._block = device, memory, block
        lanes = -(-block.head_dim // structs.LANES)
        self.state_floats = block.n_heads * lanes * block.state_size * structs.LANES
        self.history_floats = (block.conv_size - 1) * block.conv_dim
        self._decays = block.decays if isinstance(block, Delta) else block.n_heads
        # Of a row before and after the convolution, time steps and decays; of a convolution alone, before it.
        alone = isinstance(block, Conv)
        self.row_floats = block.conv_dim if alone else 2 * block.conv_dim + block.n_heads + self._decays
        self._size = max(4, 4 * (self.state_floats + self.history_floats))
        self.committed = self.start = memory.zeros(self._size)
        self.length = self.slots = 0
        self._checkpoints = list[StateCheckpoint]()
        self._next: DevicePiece | None = None
        self._rows: DevicePiece | None = None
        self._numbers, self._parents = list[int](), list[int]()
        self._next_row = self._committed_row = -1

    # ---- a call ----

    def check(self, rows: Rows) -> None:
        """Raise UsageError unless the rows before the computed ones are the pending ones."""
        first = rows.first
        if first and (first > len(self._numbers) or self._committed_row >= 0):
            raise UsageError(f"rows from {first} on cannot be added to {len(self._numbers)} pending ones")

    def begin(self, rows: Rows) -> list[tuple[int, int, int]]:
        """Make room for the computed rows of a call; the updates that make them: from the pending state or the tree's
        start, a row, which computed row's output it gives (-1: none)."""
        first, count = rows.first, len(rows)
        if not first:
            self.start, self._committed_row = self.committed, -1
        self._need_rows(count, first)
        self._numbers[first:] = rows.row_numbers()[first:].tolist()
        self._parents[first:] = rows.parents[first:].tolist()
        if self._next_row >= first:
            self._next_row = -1
        if self._next is None:
            self._next = self._memory.take(self._size)
        found, before = list[tuple[int, int, int]](), self._next_row
        for row in range(first, count):
            path = self._path(row, before)
            goes_on = before >= 0 and self._parents[path[0]] == before
            found += [(int(goes_on or i > 0), at, at - first if at == row else -1) for i, at in enumerate(path)]
            before = row
        self._next_row = count - 1
        return found

    def places(self) -> tuple[int, int, int, int]:
        """Addresses of the tree's start, its history, the pending state and the rows."""
        assert self._next is not None
        assert self._rows is not None
        start = self.start.at
        return start, start + 4 * self.state_floats, self._next.at, self._rows.at

    def pieces(self) -> list[DevicePiece]:
        """The pieces that a begun call works on."""
        return [piece for piece in (self.start, self._next, self._rows) if piece is not None]

    def bytes_of(self, rows: Rows) -> int:
        """Bytes of the device's memory that a call with these rows works on."""
        held = self._rows.size if self._rows and rows.first else 0
        return 2 * self._size + max(self._rows_size(len(rows)), held)

    def taps(self, row: int, n: int) -> list[int]:
        """The n rows that a convolution of `row` reads, oldest first; -1 - i: the i-th newest before the tree."""
        found = list[int]()
        while len(found) < n and row >= 0:
            found.append(row)
            row = self._parents[row]
        found += [-1 - i for i in range(n - len(found))]
        return found[::-1]

    # ---- what a cache does ----

    def commit(self, numbers: Sequence[int], length: int) -> None:
        """Commit these rows, as far as they are pending here; row i becomes token `length` + i of the text."""
        at = {number: i for i, number in enumerate(self._numbers)}
        kept = [(at[number], length + i) for i, number in enumerate(numbers) if number in at]
        if not kept:
            return
        last, token = kept[-1]
        self.committed, self._committed_row = self._after(last), last
        self.length, self.slots = token + 1, self.slots + len(kept)
        if len(kept) >= _WORTH:
            self.remember()

    def remember(self) -> None:
        """Add the committed state to the checkpoints."""
        self._checkpoints = [*self._checkpoints[1 - _KEPT :], StateCheckpoint(self.length, self.slots, self.committed)]

    @property
    def checkpoints(self) -> list[StateCheckpoint]:
        """The states that `truncate` can restore."""
        return self._checkpoints

    def remember_before(self, points: Sequence[StateCheckpoint]) -> None:
        """Add checkpoints of shorter lengths."""
        earlier = [point for point in points if point.length < self.length]
        self._checkpoints = [*earlier, *self._checkpoints][-_KEPT:]

    def rollback(self) -> None:
        self._numbers, self._parents = [], []
        self._next_row = self._committed_row = -1

    def reachable(self, length: int) -> int:
        """The most tokens <= length that `truncate` can leave."""
        if length >= self.length:
            return length
        return max((point.length for point in self._checkpoints if point.length <= length), default=0)

    def truncate(self, length: int) -> None:
        """Go back to `length`, which `reachable` returned."""
        if length < self.length:
            self._checkpoints = [point for point in self._checkpoints if point.length <= length]
            to = self._checkpoints[-1] if self._checkpoints else StateCheckpoint(0, 0, self._memory.zeros(self._size))
            self.committed, self.length, self.slots = to.value, to.length, to.slots
        self.rollback()

    def copy(self) -> DeviceRecurrent:
        """A copy that shares the committed state."""
        twin = DeviceRecurrent(self._device, self._memory, self._block)
        twin.committed = twin.start = self.committed
        twin.length, twin.slots, twin._checkpoints = self.length, self.slots, list(self._checkpoints)
        return twin

    def save(self) -> bytes:
        """The bytes of the history, then of the state."""
        both = np.empty(self.state_floats + self.history_floats, np.float32)
        if both.size:
            self.committed.read(0, both)
        return both[self.state_floats :].tobytes() + both[: self.state_floats].tobytes()

    def load(self, history: bytes, state: bytes, length: int, slots: int) -> None:
        """Restore a saved state."""
        self.committed = self._memory.holding(*(np.frombuffer(part, np.float32) for part in (state, history)))
        self.length, self.slots, self._checkpoints = length, slots, []
        if length:
            self.remember()
        self.rollback()

    @property
    def nbytes(self) -> int:
        return 2 * self._size + (self._rows.size if self._rows else 0)

    # ---- inside ----

    def _path(self, row: int, stop: int) -> list[int]:
        """The rows after `stop` that lead to `row`; all from the root on if `stop` is no ancestor."""
        found = list[int]()
        while row >= 0 and row != stop:
            found.append(row)
            row = self._parents[row]
        return found[::-1]

    def _rows_size(self, rows: int) -> int:
        return 4 * self.row_floats << (rows - 1).bit_length()

    def _need_rows(self, count: int, keep: int) -> None:
        """Allocate memory for the inputs of so many rows, at most what `bytes_of` counts; the first `keep` are
        pending."""
        size, held = self._rows_size(count), self._rows
        if held is not None and (held.size == size or (keep and held.size > size)):
            return
        self._rows = made = self._memory.take(size)
        if held is not None and keep:
            with self._memory.pinned((held, made)):
                self._device.copy(made.at, held.at, 4 * self.row_floats * keep)

    def _after(self, row: int) -> DevicePiece:
        """State and history after a pending row: the kept state, or a recomputed one."""
        assert self._rows is not None
        if row == self._next_row and self._next is not None:
            made, self._next, self._next_row = self._next, None, -1
            with self._memory.pinned((self.start, made, self._rows)):
                self._write_history(row, made)
            return made
        path, made = self._path(row, self._committed_row), self._memory.take(self._size)
        goes_on = self._parents[path[0]] == self._committed_row >= 0
        source = self.committed if goes_on else self.start
        with self._memory.pinned((self.start, source, made, self._rows)):
            self._advance(source, path, made)
            self._write_history(row, made)
        return made

    def _advance(self, source: DevicePiece, path: Sequence[int], made: DevicePiece) -> None:
        """Write the state after the rows of a path."""
        assert self._rows is not None
        if isinstance(self._block, Conv):
            return
        rows, kernel = Buffer.of(self._device, np.array(path, np.int32)), f"{self._block.kind}_advance"
        facts = self._block.n_heads, self._block.head_dim, self._block.state_size, self._block.n_groups
        decays = self._decays // self._block.n_heads
        arguments = state_structs.advance(source.at, self._rows.at, made.at, rows.at, *facts, len(path), decays)
        self._device.launch(kernel, scan_grid(self._block, 1), _THREADS, 0, arguments)
        self._device.synchronize()  # the path's memory is freed on return

    def _write_history(self, row: int, made: DevicePiece) -> None:
        """Write the last rows before a convolution of the row after `row`."""
        assert self._rows is not None
        width, to = 4 * self._block.conv_dim, made.at + 4 * self.state_floats
        for i, tap in enumerate(self.taps(row, self._block.conv_size)[1:]):
            source = self._rows.at + 4 * self.row_floats * tap
            if tap < 0:
                source = self.start.at + 4 * self.state_floats + width * (self._block.conv_size - 1 + tap)
            self._device.copy(to + width * i, source, width)


def recurring(spec: ModelSpec) -> dict[int, Recurring]:
    """The blocks by number that keep such a state."""
    return {b: block for b, block in spec.recurrent.items() if isinstance(block, Recurring)}


def scan_grid(block: Delta | Ssm, sequences: int) -> tuple[int, int, int]:
    """Blocks of two lane groups, by sequences."""
    groups = block.n_heads * -(-block.head_dim // structs.LANES)
    return -(-groups * structs.LANES // _THREADS), sequences, 1
