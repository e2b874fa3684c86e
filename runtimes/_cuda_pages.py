"""Pages of cached keys and values in a device's memory, counted by who holds them.

A page holds 64 slots of every attention block, one block after another, each as the native engine lays it out:
[k and v][kv_heads][slot][row bytes]. So one table of pages serves all blocks that hold the same slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

import numpy as np

from edgedec.kernels.cuda import structs
from edgedec.kernels.cuda.device import Buffer, Device, Recycler
from edgedec.spec import Attention, ModelSpec

SLOTS = structs.PAGE_SLOTS
_SLAB = 4 << 20
# Heads of so few values have no int4 cache, as in the native engine.
_NARROW_HEAD = 16
_SCALE_GROUP = 16


def kv_format(block: Attention, kv: str) -> int:
    """The format in which a block's keys and values are kept."""
    narrow = kv == "int4" and block.head_dim <= _NARROW_HEAD
    return structs.FORMATS["int8" if narrow else kv]


def row_bytes(dim: int, fmt: int) -> int:
    """Bytes of one key or value of a head."""
    match fmt:
        case 1:
            return 4 * dim
        case 2:
            return -(-2 * dim // 4) * 4
        case 3:
            return -(-dim // 4) * 4 + 4
        case _:
            return -(-((dim + 1) // 2) // 4) * 4 + 4 * -(-dim // _SCALE_GROUP)


class PagePool:
    """All pages of one runtime. `offsets`: where in a page each attention block begins; `rows`: bytes of its rows."""

    def __init__(self, device: Device, spec: ModelSpec, kv: str) -> None:
        self.device, self.spec, self.states = device, spec, Recycler(device)
        self.rows = {b: row_bytes(block.head_dim, kv_format(block, kv)) for b, block in spec.attention.items()}
        self.offsets, self.page_bytes = dict[int, int](), 0
        for b in spec.attention:
            self.offsets[b] = self.page_bytes
            self.page_bytes += self.block_bytes(b)
        self._slabs, self._free, self._holders = list[Buffer](), list[int](), list[int]()
        self._runs = dict[tuple[int, ...], Buffer]()
        self._moves = Buffer(device, 1 << 12)
        self._lock = Lock()

    def block_bytes(self, block: int) -> int:
        """Bytes of a page that belong to an attention block."""
        return 2 * self.spec.attention[block].n_kv_heads * SLOTS * self.rows[block]

    @property
    def per_slab(self) -> int:
        return max(1, _SLAB // max(self.page_bytes, 1))

    def take(self) -> int:
        """The number of a page that is held once; what is in it is not cleared."""
        with self._lock:
            if not self._free:
                self._slabs.append(Buffer(self.device, self.page_bytes * self.per_slab))
                first = len(self._holders)
                self._holders += [0] * self.per_slab
                self._free += range(first + self.per_slab - 1, first - 1, -1)
            page = self._free.pop()
            self._holders[page] = 1
            return page

    def hold(self, pages: Sequence[int]) -> None:
        with self._lock:
            for page in pages:
                self._holders[page] += 1

    def release(self, pages: Sequence[int]) -> None:
        with self._lock:
            for page in pages:
                self._holders[page] -= 1
                if not self._holders[page]:
                    self._free.append(page)

    def holders(self, page: int) -> int:
        return self._holders[page]

    @property
    def used(self) -> int:
        """Pages that anybody holds."""
        return len(self._holders) - len(self._free)

    def address(self, page: int) -> int:
        slab, index = divmod(page, self.per_slab)
        return self._slabs[slab].at + index * self.page_bytes

    def copy(self, to: int, page: int, blocks: Sequence[int]) -> None:
        """Copy what a page holds of these blocks."""
        if len(blocks) == len(self.offsets):
            return self.device.copy(self.address(to), self.address(page), self.page_bytes)
        for b in blocks:
            at = self.offsets[b]
            self.device.copy(self.address(to) + at, self.address(page) + at, self.block_bytes(b))

    def move(self, pages: Sequence[int], source: Sequence[int], target: Sequence[int], blocks: Sequence[int]) -> None:
        """Move rows between slots of a table of pages, in order: slot source[i] to target[i]."""
        places = np.array([self.address(page) for page in pages], np.uint64)
        moves = np.empty((len(source), 4), np.uint64)
        for at, slots in ((0, np.asarray(source)), (2, np.asarray(target))):
            moves[:, at], moves[:, at + 1] = places[slots // SLOTS], slots % SLOTS
        if moves.nbytes > self._moves.size:
            self._moves = Buffer(self.device, 2 * moves.nbytes)
        self.device.write(self._moves.at, moves)
        runs = self._runs_of(tuple(blocks))
        count = sum(2 * self.spec.attention[b].n_kv_heads for b in blocks)
        self.device.launch("move_slots", (count, 1, 1), 32, 0, structs.move(self._moves.at, runs.at, len(moves)))

    def _runs_of(self, blocks: tuple[int, ...]) -> Buffer:
        """[n, 2]: offset and row bytes of each run of a page."""
        if blocks not in self._runs:
            found = [
                (self.offsets[b] + run * SLOTS * self.rows[b], self.rows[b])
                for b in blocks
                for run in range(2 * self.spec.attention[b].n_kv_heads)
            ]
            self._runs[blocks] = Buffer.of(self.device, np.array(found, np.int64))
        return self._runs[blocks]
