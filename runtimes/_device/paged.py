"""The base of runtimes with pages on a device: pages, caches, grouping and checks of calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from edgedec.errors import ContextFull, UsageError
from edgedec.kernels.device.interface import Device
from edgedec.runtime import Call, CallResult, Capabilities, Rows, check_calls
from edgedec.runtimes._device.adapters import DeviceAdapter
from edgedec.runtimes._device.cache import SPARE_PAGES, PagedCache
from edgedec.runtimes._device.pages import SLOTS, PagePool
from edgedec.spec import KV_FORMATS, ModelSpec

# As in the native engine: with a smaller vocabulary, copying all logits costs less than selecting the best tokens.
_BEST, _WIDE = 256, 1 << 14
# Bytes that pages free at once where the device has no memory left for a step.
_RELIEF = 64 << 20


class PagedRuntime(ABC):
    """A runtime whose caches are `PagedCache`s; `_run` runs calls of the same blocks."""

    name = "device"
    capabilities: Capabilities

    def __init__(self, spec: ModelSpec, kv: str, device: Device, memory: int = 0) -> None:
        """memory: bytes of the device for pages and states (0: all); the rest is swapped to the host's memory."""
        self.spec, self.kv = spec, kv
        self._pool = PagePool(device, spec, kv, memory)
        self._lock = self._pool.busy
        self._all = tuple(range(spec.n_blocks))

    @property
    def pages(self) -> int:
        """Pages that all caches of this runtime hold."""
        return self._pool.used

    @property
    def longest(self) -> int | None:
        """The longest text, in tokens, whose cache fits in the device's memory; None: no limit is known."""
        if not self._pool.budget.most:
            return None
        left = self._pool.budget.most - self._state_bytes
        if not self._pool.page_bytes:
            return self.spec.context_length if left >= 0 else 0
        return max(left // self._pool.page_bytes - SPARE_PAGES, 0) * SLOTS

    @cached_property
    def _state_bytes(self) -> int:
        """Bytes of the recurrent states of the largest call."""
        if not self.spec.recurrent:
            return 0
        rows = Rows.chain([0] * min(self.capabilities.largest_call, self.spec.context_length), 0)
        return self.new_cache(1).piece_bytes(rows)

    def _declared(self, **more: Any) -> Capabilities:
        """The capabilities of paged runtimes, plus `more`."""
        return Capabilities(
            kv_formats=KV_FORMATS,
            batch_invariant=True,
            merge=True,
            drop_by_head=True,
            attach=True,
            best_k=_BEST if self.spec.vocab_size >= _WIDE else 0,
            temperatures=True,
            page_slots=SLOTS,
            masks=False,
            **more,
        )

    @abstractmethod
    def load(self) -> None:
        """Open what the whole stack needs."""

    @abstractmethod
    def release(self) -> None:
        """Give back what can be opened again; caches stay."""

    def new_cache(self, capacity: int) -> PagedCache:
        if capacity < 1:
            raise UsageError(f"capacity {capacity}: a cache needs room for at least one token")
        return PagedCache(self._pool, capacity, self.kv)

    def forward(self, calls: Sequence[Call]) -> list[CallResult]:
        check_calls(calls, self.spec, self.capabilities)
        with self._lock:
            groups: dict[tuple[tuple[int, ...], DeviceAdapter | None, frozenset[int]], list[int]] = {}
            for i, call in enumerate(calls):
                blocks = self._all if call.blocks is None else tuple(call.blocks)
                self._check(call, blocks)
                groups.setdefault((blocks, self._adapter(call), frozenset(call.views or ())), []).append(i)
            found: dict[int, CallResult] = {}
            for (blocks, adapter, _), members in groups.items():
                for some in self._fitting([(i, own(calls[i]), calls[i].rows) for i in members]):
                    found |= zip(some, self._run_relieved(blocks, adapter, [calls[i] for i in some]), strict=True)
            return [found[i] for i in range(len(calls))]

    def _fitting(self, calls: Sequence[tuple[int, PagedCache, Rows]]) -> Iterator[list[int]]:
        """Groups of calls, by number, whose pages and states fit on the device together."""
        most, page = self._pool.budget.most, self._pool.page_bytes
        some, pages, new = list[int](), set[int](), 0
        for i, cache, rows in calls if most else ():
            own_pages, own_new = set(cache.pages()), cache.new_pages(rows) * page + cache.piece_bytes(rows)
            if some and len(pages | own_pages) * page + new + own_new > most:
                yield some
                some, pages, new = [], set(), 0
            some, pages, new = [*some, i], pages | own_pages, new + own_new
        yield some if most else [i for i, _, _ in calls]

    def _run_relieved(
        self, blocks: tuple[int, ...], adapter: DeviceAdapter | None, calls: Sequence[Call]
    ) -> list[CallResult]:
        """The results of calls; if the device runs out of working memory, pages are evicted once and the calls
        repeated."""
        try:
            return self._run_pinned(blocks, adapter, calls)
        except MemoryError:
            if not self._pool.budget.relieve(_RELIEF):
                raise
            return self._run_pinned(blocks, adapter, calls)

    def _run_pinned(
        self, blocks: tuple[int, ...], adapter: DeviceAdapter | None, calls: Sequence[Call]
    ) -> list[CallResult]:
        """The results of calls, with their states and pages pinned on the device."""
        caches, frames = [own(call) for call in calls], self._pool.frames
        for cache, call in zip(caches, calls, strict=True):
            cache.begin(blocks, call.rows)
        # States first: they may take slabs of pages, and no page is pinned yet.
        states = [piece for cache in caches for piece in cache.pieces()]
        with self._pool.states.pinned(states), frames.pinned(self._leaving(caches)):
            for cache, call in zip(caches, calls, strict=True):
                cache.make_room(blocks, call.rows)
            with frames.pinned(self._leaving(caches)):
                return self._run(blocks, adapter, calls, caches)

    def _leaving(self, caches: Sequence[PagedCache]) -> set[int]:
        """The pages of caches that could be evicted; none while the device holds all pages."""
        return {page for cache in caches for page in cache.pages()} if self._pool.frames.most else set()

    @abstractmethod
    def _run(
        self,
        blocks: tuple[int, ...],
        adapter: DeviceAdapter | None,
        calls: Sequence[Call],
        caches: Sequence[PagedCache],
    ) -> list[CallResult]:
        """The results of calls that run the same blocks with the same adapter; their caches have room for the rows."""

    def _adapter(self, call: Call) -> DeviceAdapter | None:
        """A call's adapter in the form that the runtime's steps use; None if there is none."""
        return None

    def _check(self, call: Call, blocks: tuple[int, ...]) -> None:
        """Raise UsageError or ContextFull for a call that cannot run, before anything changes."""
        if not isinstance(call.cache, PagedCache) or call.cache.pool is not self._pool:
            raise UsageError("the cache is of another runtime: use one of this runtime's new_cache()")
        rows = call.rows
        if blocks and (rows.positions.min() < 0 or rows.positions.max() >= self.spec.positions):
            raise UsageError(f"a position outside the model's context of {self.spec.context_length}")
        call.cache.check(blocks, rows)
        self._check_room(call.cache, rows)

    def _check_room(self, cache: PagedCache, rows: Rows) -> None:
        """Raise ContextFull if the device cannot hold a call's pages and states even with everything else evicted."""
        pool, states = self._pool, cache.piece_bytes(rows)
        if not pool.budget.most:
            return
        room, need = pool.budget.most - states, len(set(cache.pages())) + cache.new_pages(rows)
        if need * pool.page_bytes <= room and room >= 0:
            return
        held = max(room, 0) // pool.page_bytes if pool.page_bytes else 0
        beside = f" beside its states of {states:,} bytes" if states else ""
        raise ContextFull(
            f"a text of {need} pages{beside}: the device's memory for caches holds {held} (device_cache); allow more, "
            "or take a smaller context"
        )


def own(call: Call) -> PagedCache:
    """The call's cache."""
    assert isinstance(call.cache, PagedCache)
    return call.cache
