"""One text in the caches of two engines: one has all of it, the other a prefix or nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.cache import Cache
from edgedec.cache.base import Arrays, Ints, Weights
from edgedec.errors import SessionError, UsageError
from edgedec.runtime import Capabilities, Runtime
from edgedec.runtimes.paired.layout import Handover
from edgedec.runtimes.paired.pages import PageNumbers

DECODE, PREFILL = 0, 1


@dataclass
class Sides:
    """The engines for decode and prefill, and the conversion of caches between them. moved: tokens handed over and
    number of times, by receiving engine; moved_bytes: bytes of these."""

    engines: tuple[Runtime, Runtime]
    ways: tuple[Handover, Handover]  # to the engine for decode, to that for prefill
    page_slots: int
    moved: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0), (0, 0)])
    moved_bytes: list[int] = field(default_factory=lambda: [0, 0])

    def can(self, side: int) -> Capabilities:
        return self.engines[side].capabilities


class PairedCache:
    """`edgedec.cache.Cache`, of the kind of the engine for decode. `held`: the number of tokens of the text on each
    side; one side has all. After a drop or merge on one side, the other side holds nothing."""

    def __init__(self, sides: Sides, caches: Sequence[Cache], length: int = 0) -> None:
        self._sides, self._caches, self.length = sides, list(caches), length
        self.spec, self.capacity = caches[DECODE].spec, caches[DECODE].capacity
        self.kv, self.kind = caches[DECODE].kv, caches[DECODE].kind
        self.held = [cache.length for cache in caches]
        self._pages = PageNumbers(sides.page_slots)
        self.pending = -1  # the side with pending rows of a tree
        self._gaps = False  # are slots dropped, merged or attached in a block?

    # ---- what a call does ----

    def lacking(self) -> tuple[int, int]:
        """The number of tokens that would have to be handed over to each side."""
        return self._lacks(DECODE), self._lacks(PREFILL)

    def _lacks(self, side: int) -> int:
        whole = self.held[side] < self.length and not self.follows(side)
        return self.length if whole else self.length - self.held[side]

    def follows(self, side: int) -> bool:
        """Whether a side receives only the tokens that it lacks."""
        return self._sides.ways[side].follows and not self._gaps

    def at(self, side: int) -> Cache:
        return self._caches[side]

    def bring(self, side: int) -> bool:
        """Hand the text over to a side that lacks some of it; False if the side cannot represent it or has no room."""
        if self.held[side] == self.length:
            return True
        tokens, moved = self._lacks(side), None
        try:
            moved = self._sides.ways[side].move(self._caches[1 - side], self._caches[side], self.held[side])
        except MemoryError:
            self._forget(side)
        if moved is None:
            return False
        self.held[side] = self.length
        self._sides.moved[side] = self._sides.moved[side][0] + tokens, self._sides.moved[side][1] + 1
        self._sides.moved_bytes[side] += moved
        return True

    def begin(self, side: int) -> None:
        """Start a call on a side that has all of the text; a pending tree on the other side is rolled back."""
        if self.pending == 1 - side:
            self._caches[1 - side].rollback()
        self.pending = side

    # ---- edgedec.cache.Cache ----

    def slots(self, block: int) -> int:
        return self._whole.slots(block)

    def positions(self, block: int) -> Ints:
        return self._whole.positions(block)

    def commit(self, rows: Sequence[int]) -> None:
        side = self._busy
        before = self._first_slots()
        self._caches[side].commit(rows)
        self.length = self.held[side] = self._caches[side].length
        self._pages.grow(before, self._first_slots())

    def attach(self, rows: int) -> None:
        side = self._busy
        before = self._first_slots()
        self._caches[side].attach(rows)
        self._forget(1 - side)
        self._gaps = True
        self._pages.grow(before, self._first_slots())

    def rollback(self) -> None:
        for cache in self._caches:
            cache.rollback()
        self.pending = -1

    def truncate(self, length: int) -> None:
        if not 0 <= length <= self.length:
            raise UsageError(f"cannot truncate {self.length} cached tokens to {length}")
        for side, cache in enumerate(self._caches):
            if self.held[side] == self.length:
                cache.truncate(length)
        # A recurrent block may be truncated further; the side with more tokens then defines the length.
        self.length = max(
            cache.length for cache, held in zip(self._caches, self.held, strict=True) if held == self.length
        )
        for side, cache in enumerate(self._caches):
            if cache.length > self.length:
                cache.truncate(self.length)
            self.held[side] = cache.length
        self._gaps = self._gaps and self._has_gaps()
        self._pages.cut(self._first_slots())
        self.pending = -1

    def fork(self, length: int | None = None, capacity: int | None = None) -> PairedCache:
        length = self.length if length is None else length
        if not 0 <= length <= self.length:
            raise UsageError(f"cannot fork {length} of {self.length} cached tokens")
        capacity = self.capacity if capacity is None else capacity
        self.bring(DECODE)  # once here, not once per fork later
        caches = [cache.fork(min(length, held), capacity) for cache, held in zip(self._caches, self.held, strict=True)]
        twin = PairedCache(self._sides, caches, max(cache.length for cache in caches))
        twin._gaps = self._gaps and twin._has_gaps()
        twin._pages = self._pages.fork()
        twin._pages.cut(twin._first_slots())
        return twin

    def drop(self, block: int, slots: Sequence[int] | Ints) -> None:
        self._change("drop").drop(block, slots)
        self._dropped(block)

    def drop_by_head(self, block: int, slots: Ints) -> None:
        self._change("drop_by_head").drop_by_head(block, slots)
        self._dropped(block)

    def merge(self, block: int, into: Sequence[int], slots: Sequence[int], weights: Weights) -> None:
        self._change("merge").merge(block, into, slots, weights)
        self._pages.anew(self._first_slots())

    def offload(self, block: int, pages: Sequence[int] | Ints, folder: str) -> None:
        self._change("offload").offload(block, pages, folder)

    def keys(self, block: int, start: int = 0) -> NDArray[np.float32]:
        return self._caches[self._able("merge")].keys(block, start)

    def save(self) -> Arrays:
        if self.held[DECODE] == self.length:
            return self._caches[DECODE].save()
        arrays = self._sides.ways[DECODE].converted(self._caches[PREFILL].save())
        if arrays is None:
            raise SessionError(f"what is left of this text cannot be saved as a {self.kind} cache")
        return arrays

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._caches[DECODE].load(arrays)
        self.length = self.held[DECODE] = self._caches[DECODE].length
        self._forget(PREFILL)
        self._gaps = self._has_gaps()
        self._pages.anew(self._first_slots())

    def page_ids(self) -> Ints:
        return self._pages.ids()

    @property
    def nbytes(self) -> int:
        return sum(cache.nbytes for cache in self._caches)

    # ---- sides ----

    @property
    def _side(self) -> int:
        """A side that has all of the text."""
        return DECODE if self.held[DECODE] == self.length else PREFILL

    @property
    def _whole(self) -> Cache:
        return self._caches[self._side]

    @property
    def _busy(self) -> int:
        """The side with pending rows; without any, a side whose commit raises the error."""
        return self._side if self.pending < 0 else self.pending

    def _first_slots(self) -> int:
        """Slots of the first attention block, whose pages are counted."""
        block = next(iter(self.spec.attention), None)
        return 0 if block is None else self._whole.slots(block)

    def _able(self, what: str) -> int:
        """A side that has all of the text and declares this capability."""
        sides = [side for side in (self._side, DECODE, PREFILL) if getattr(self._sides.can(side), what)]
        return next((side for side in sides if self.bring(side)), self._side)

    def _change(self, what: str) -> Cache:
        """The cache to change; the other side is emptied."""
        side = self._able(what)
        self._forget(1 - side)
        return self._caches[side]

    def _dropped(self, block: int) -> None:
        self._gaps = self._gaps or self._whole.slots(block) != self.length
        self._pages.anew(self._first_slots())

    def _has_gaps(self) -> bool:
        return any(self._whole.slots(block) != self.length for block in self.spec.attention)

    def _forget(self, side: int) -> None:
        self._caches[side].truncate(0)
        self.held[side], self.pending = 0, -1
