"""Placement of pages: in frames of the device's memory within the budget, otherwise in the host's memory.

A page that is needed again is copied back to a frame; the least recently used page is evicted for it. Pages in use by a
step or a move are pinned.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from edgedec.kernels.device.interface import Buffer, Device
from edgedec.runtimes._device.budget import MemoryBudget

_SLAB = 4 << 20
_AWAY = -1
Bytes = NDArray[np.uint8]


class _Frames:
    """Pieces of one size, cut from slabs of a budget."""

    def __init__(self, budget: MemoryBudget, size: int, slab: int) -> None:
        self._budget, self.size, self._per_slab = budget, size, max(1, slab // max(size, 1))
        self._slabs, self._free, self._made = dict[int, Buffer](), list[int](), 0
        self._used, self._empty = Counter[int](), set[int]()

    def take(self) -> int | None:
        """A frame; None if there is no more."""
        if not self._free and not self._grow():
            return None
        frame = self._free.pop()
        self._used[self.slab(frame)] += 1
        self._empty.discard(self.slab(frame))
        return frame

    def give_back(self, frame: int) -> None:
        slab = self.slab(frame)
        self._free.append(frame)
        self._used[slab] -= 1
        if not self._used[slab]:
            self._empty.add(slab)

    def address(self, frame: int) -> int:
        return self._slabs[self.slab(frame)].at + frame % self._per_slab * self.size

    def slab(self, frame: int) -> int:
        """The number of a frame's slab."""
        return frame // self._per_slab

    def drop_empty(self) -> int:
        """Free a slab without taken frames; returns its bytes, 0 if there is none."""
        if not self._empty:
            return 0
        slab = self._empty.pop()
        self._free = [frame for frame in self._free if self.slab(frame) != slab]
        return self._slabs.pop(slab).size

    def _grow(self) -> bool:
        found = self._budget.slab(self.size, self._per_slab)
        if found is None:
            return False
        first = self._made * self._per_slab
        self._slabs[self._made], n = found
        self._empty.add(self._made)
        self._made += 1
        self._free += range(first + n - 1, first - 1, -1)
        return True


class PageFrames:
    """The frames of pages by number. `swapped`: how many pages have left the device so far."""

    def __init__(
        self,
        device: Device,
        page_bytes: int,
        most: int = 0,
        budget: MemoryBudget | None = None,
        slab: int | None = None,
    ) -> None:
        """most: limit in pages for frames with a budget of their own (0: no limit); slab: bytes of one allocation."""
        self._device, self._budget = device, budget or MemoryBudget(device, most * page_bytes)
        self._frames = _Frames(self._budget, page_bytes, _SLAB if slab is None else slab)
        self._budget.join(self)
        self.turn, self._of = self._budget.turn, dict[int, int]()
        self._away, self._recent, self._pins = dict[int, Bytes](), OrderedDict[int, None](), Counter[int]()
        self.swapped = 0

    @property
    def most(self) -> int:
        """The most pages that fit on the device if nothing else shares the budget; 0: not known yet."""
        return max(self._budget.most // max(self._frames.size, 1), int(self._budget.most > 0))

    @property
    def away(self) -> int:
        """The number of pages in the host's memory."""
        return len(self._away)

    def add(self, page: int) -> None:
        """Add a page; its content is undefined."""
        with self.turn:
            self._of[page] = self._frame()
            self._recent[page] = None

    def remove(self, page: int) -> None:
        with self.turn:
            frame = self._of.pop(page)
            self._recent.pop(page, None)
            self._away.pop(page, None)
            if frame != _AWAY:
                self._frames.give_back(frame)

    def address(self, page: int) -> int:
        """The device address of a page; it is copied there first if it is in the host's memory."""
        frame = self._of[page]
        return self._frames.address(self._bring(page) if frame == _AWAY else frame)

    def read(self, page: int, at: int, out: Bytes) -> None:
        """Fill `out` with a page's bytes from `at` on, wherever it lies."""
        with self.turn:
            away = self._away.get(page)
            if away is None:
                return self._device.read(self.address(page) + at, out)
            out.reshape(-1)[:] = away[at : at + out.nbytes]

    @contextmanager
    def pinned(self, pages: Collection[int]) -> Iterator[None]:
        """Keep these pages on the device inside the context. MemoryError if they do not fit."""
        with self.turn:
            self._pins.update(pages)
            try:
                for page in pages:
                    self._bring(page)
            except MemoryError:
                self._unpin(pages)
                raise
        try:
            yield
        finally:
            with self.turn:
                self._unpin(pages)

    def _unpin(self, pages: Collection[int]) -> None:
        self._pins.subtract(pages)
        self._pins = +self._pins

    def _bring(self, page: int) -> int:
        with self.turn:
            frame = self._of[page]
            if frame == _AWAY:
                frame = self._frame()
                self._device.write(self._frames.address(frame), self._away.pop(page))
                self._of[page] = frame
            self._recent[page] = None
            self._recent.move_to_end(page)
            return frame

    def give_back(self, evict: bool) -> int:
        """As `Tenant`: free a slab without pages, or one whose pages can all be evicted."""
        with self.turn:
            given = self._frames.drop_empty()
            if given or not evict:
                return given
            slabs = defaultdict[int, list[int]](list)
            for page in self._recent:
                slabs[self._frames.slab(self._of[page])].append(page)
            leaving = next((pages for pages in slabs.values() if not any(self._pins[page] for page in pages)), ())
            for page in leaving:
                self._frames.give_back(self._sent_away(page))
            return self._frames.drop_empty()

    def _frame(self) -> int:
        """A free frame; if there is none, that of the least recently used page, which is evicted."""
        size, make_room = self._frames.size, self._budget.make_room
        frame = self._frames.take()
        if frame is None and make_room(self, size, evict=False):
            frame = self._frames.take()
        if frame is None and (page := next((page for page in self._recent if not self._pins[page]), None)) is not None:
            return self._sent_away(page)
        if frame is None and make_room(self, size, evict=True):
            frame = self._frames.take()
        if frame is None:
            raise MemoryError(f"the device's {self.most} pages are all in use")
        return frame

    def _sent_away(self, page: int) -> int:
        """Move a page to the host's memory; returns its frame."""
        frame, bytes_ = self._of[page], np.empty(self._frames.size, np.uint8)
        self._device.read(self._frames.address(frame), bytes_)
        self._away[page], self._of[page] = bytes_, _AWAY
        del self._recent[page]
        self.swapped += 1
        return frame
