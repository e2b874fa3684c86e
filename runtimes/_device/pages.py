"""Reference-counted pages of cached keys and values in a device's memory.

A page holds 64 slots of every attention block, one block after another, each as the native engine lays it out:
[k and v][kv_heads][slot][row bytes]. One table of pages therefore serves all blocks that hold the same slots.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from threading import RLock

import numpy as np
from numpy.typing import NDArray

from edgedec.kernels.device import structs
from edgedec.kernels.device.interface import Buffer, Device, Recycler
from edgedec.runtimes._device.bounds import PageBounds
from edgedec.runtimes._device.budget import MemoryBudget
from edgedec.runtimes._device.formats import kv_format, row_bytes
from edgedec.runtimes._device.frames import PageFrames
from edgedec.runtimes._device.pieces import PieceMemory
from edgedec.spec import ModelSpec

SLOTS = structs.PAGE_SLOTS
Bytes = NDArray[np.uint8]


class PagePool:
    """All pages of one runtime. `offsets`: offset of each attention block in a page; `rows`: bytes of its rows;
    `states`: memory of recurrent states, within the same `budget`.

    `busy`: the lock of the device; a step holds it from its first page to its results. Lock order: `busy` before
    `frames.turn`. `release`, which the garbage collector may call, takes only `frames.turn`.
    """

    def __init__(self, device: Device, spec: ModelSpec, kv: str, memory: int = 0) -> None:
        """memory: bytes of the device for pages and states (0: all); the rest is swapped to the host's memory."""
        self.device, self.spec, self.kv = device, spec, kv
        self.rows = {b: row_bytes(block.head_dim, kv_format(block, kv)) for b, block in spec.attention.items()}
        self.offsets, self.page_bytes = dict[int, int](), 0
        for b in spec.attention:
            self.offsets[b] = self.page_bytes
            self.page_bytes += self.block_bytes(b)
        self.busy = RLock()
        self._free, self._holders = list[int](), list[int]()
        self.budget = MemoryBudget(device, max(memory, self.page_bytes) if memory else 0)
        self.frames = PageFrames(device, self.page_bytes, budget=self.budget)
        self.states, self.bounds = PieceMemory(device, self.budget), PageBounds(device, spec, Recycler(device))
        self._runs = dict[tuple[tuple[int, ...], int | None], tuple[int, Buffer]]()
        self._moves = Buffer(device, 1 << 12)

    def block_bytes(self, block: int) -> int:
        """Bytes of a page that belong to an attention block."""
        return 2 * self.spec.attention[block].n_kv_heads * SLOTS * self.rows[block]

    def take(self) -> int:
        """The number of a page with reference count 1; its content is undefined."""
        with self.busy, self.frames.turn:
            page = self._free.pop() if self._free else len(self._holders)
            try:
                self.frames.add(page)
            except MemoryError:
                if page < len(self._holders):
                    self._free.append(page)
                raise
            if page == len(self._holders):
                self._holders.append(0)
            self._holders[page] = 1
            return page

    def hold(self, pages: Sequence[int]) -> None:
        with self.frames.turn:
            for page in pages:
                self._holders[page] += 1

    def release(self, pages: Sequence[int]) -> None:
        """Drop one reference. Finalizers of tables call it at any time, also during `take`."""
        given = list(pages)
        self.frames.turn.after(lambda: self._release(given))

    def _release(self, pages: Sequence[int]) -> None:
        for page in pages:
            self._holders[page] -= 1
            if not self._holders[page]:
                self.frames.remove(page)
                self.bounds.forget(page)
                self._free.append(page)

    def holders(self, page: int) -> int:
        return self._holders[page]

    @property
    def used(self) -> int:
        """The number of pages in use."""
        return len(self._holders) - len(self._free)

    def address(self, page: int) -> int:
        """The device address of a page."""
        return self.frames.address(page)

    def copy(self, to: int, page: int, blocks: Sequence[int]) -> None:
        """Copy the rows of these blocks from one page to another."""
        with self._pinned((to, page)):
            target, source = self.address(to), self.address(page)
            if len(blocks) == len(self.offsets):
                return self.device.copy(target, source, self.page_bytes)
            for b in blocks:
                at = self.offsets[b]
                self.device.copy(target + at, source + at, self.block_bytes(b))

    def read(self, page: int, block: int, out: Bytes) -> None:
        """Fill `out` with a block's part of a page."""
        with self.busy:
            self.frames.read(page, self.offsets[block], out)

    def write(self, page: int, block: int, rows: Bytes) -> None:
        """Replace a block's part of a page."""
        with self._pinned((page,)):
            self.device.write(self.address(page) + self.offsets[block], rows)

    def make_bounds(self, pages: Sequence[int], block: int) -> None:
        """Compute the bounds of a block's keys in full pages that have none."""
        with self.busy:
            lacking = self.bounds.lacking(pages, block)
            with self._pinned(lacking):
                places = [(self.address(page), self.bounds.address(page)) for page in lacking]
                self.bounds.make(places, block, self.offsets[block], self.rows[block], self.kv)
            self.bounds.made(lacking, block)

    def move(
        self,
        pages: Sequence[int],
        source: Sequence[int],
        target: Sequence[int],
        blocks: Sequence[int],
        head: int | None = None,
    ) -> None:
        """Move rows between slots of a table of pages, in order: slot source[i] to target[i]. head: of one kv head."""
        moved = sorted({slot // SLOTS for slot in (*source, *target)})
        with self._pinned([pages[at] for at in moved]):
            places = np.zeros(len(pages), np.uint64)
            places[moved] = [self.address(pages[at]) for at in moved]
            moves = np.empty((len(source), 4), np.uint64)
            for at, slots in ((0, np.asarray(source)), (2, np.asarray(target))):
                moves[:, at], moves[:, at + 1] = places[slots // SLOTS], slots % SLOTS
            if moves.nbytes > self._moves.size:
                self._moves = Buffer(self.device, 2 * moves.nbytes)
            self.device.write(self._moves.at, moves)
            count, runs = self._runs_of(tuple(blocks), head)
            self.device.launch("move_slots", (count, 1, 1), 32, 0, structs.move(self._moves.at, runs.at, len(moves)))

    @contextmanager
    def _pinned(self, pages: Collection[int]) -> Iterator[None]:
        """Hold the device's lock and keep these pages on the device."""
        with self.busy, self.frames.pinned(pages):
            yield

    def _runs_of(self, blocks: tuple[int, ...], head: int | None) -> tuple[int, Buffer]:
        """The number of contiguous runs of rows that blocks (or one head) have in a page, and offset and row bytes of
        each [n, 2]."""
        if (blocks, head) not in self._runs:
            found = [
                (self.offsets[b] + run * SLOTS * self.rows[b], self.rows[b])
                for b in blocks
                for run in range(2 * self.spec.attention[b].n_kv_heads)
                if head is None or run % self.spec.attention[b].n_kv_heads == head
            ]
            self._runs[blocks, head] = len(found), Buffer.of(self.device, np.array(found, np.int64))
        return self._runs[blocks, head]
