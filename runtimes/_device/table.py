"""Tables of pages: the slots that blocks hold, and their pages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgedec.cache.slots import SlotMap
from edgedec.runtime import Rows
from edgedec.runtimes._device.pages import SLOTS, PagePool
from edgedec.runtimes._device.saved import Saved


class PageTable:
    """The slots of the attention blocks that hold the same rows, and the pages they lie in."""

    def __init__(self, pool: PagePool, room: int = 0) -> None:
        self.pool, self.slots, self.pages, self.start = pool, SlotMap(room), list[int](), 0

    def copy(self) -> PageTable:
        """A copy of the table that shares its pages."""
        twin = PageTable(self.pool)
        twin.slots, twin.pages, twin.start = self.slots.copy(), list(self.pages), self.start
        self.pool.hold(twin.pages)
        return twin

    def write(self, rows: Rows, blocks: Sequence[int]) -> None:
        """Make room for the computed rows of a call; `start`: the slot of row 0 of their tree."""
        first, stop = self.slots.write(rows)
        self.start = first - rows.first
        self.own(first, stop, blocks)

    def own(self, first: int, stop: int, blocks: Sequence[int]) -> None:
        """Make slots first .. stop - 1 writable: shared pages are copied, and earlier slots of these pages stay."""
        for at in range(first // SLOTS, -(-stop // SLOTS)):
            if at >= len(self.pages):
                self.pages.append(self.pool.take())
            elif self.pool.holders(self.pages[at]) > 1:
                page = self.pool.take()
                self.pool.copy(page, self.pages[at], blocks)
                self.pool.release([self.pages[at]])
                self.pages[at] = page
            self.pool.bounds.changed(self.pages[at], blocks)

    def move(
        self, source: Sequence[int], target: Sequence[int], blocks: Sequence[int], head: int | None = None
    ) -> None:
        """Move rows between slots, in their order. head: of this kv head only."""
        if len(source):
            self.own(min(target), max(target) + 1, blocks)
            self.pool.move(self.pages, source, target, blocks, head)

    def shrink(self) -> None:
        """Give back pages after the committed slots."""
        keep = -(-self.slots.committed // SLOTS)
        self.pool.release(self.pages[keep:])
        del self.pages[keep:]

    def identity(self) -> bool:
        """Whether slot i holds token i at position i, for all slots."""
        plain = np.arange(self.slots.committed)
        return np.array_equal(self.slots.positions, plain) and np.array_equal(self.slots.tokens, plain)

    def __del__(self) -> None:
        if self.pages:
            self.pool.release(self.pages)
            self.pages = []


def loaded_tables(pool: PagePool, saved: Saved) -> dict[int, PageTable]:
    """Tables of a saved state; blocks that hold the same slots share one."""
    tables, same = dict[int, PageTable](), dict[bytes, PageTable]()
    for b, part in saved.blocks.items():
        key = part.tokens.tobytes() + part.positions.tobytes()
        if key not in same:
            table = same[key] = PageTable(pool)
            table.slots.load(part.positions, part.tokens)
            table.own(0, len(part.tokens), [])
        tables[b] = same[key]
        for page, rows in zip(tables[b].pages, part.pages, strict=True):
            pool.write(page, b, rows)
    return tables
