"""Bounds of the keys of full pages. They are computed when a view first searches a page and kept until its rows
change."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from edgedec.kernels.device import structs
from edgedec.kernels.device.interface import Buffer, Device, Recycled, Recycler
from edgedec.runtimes._device.formats import kv_format
from edgedec.spec import ModelSpec


class PageBounds:
    """Key bounds by page number: memory [kv_heads][least, largest][dimensions, whole sixteens] bfloat16 for each
    attention block, and the blocks whose bounds are computed."""

    def __init__(self, device: Device, spec: ModelSpec, memory: Recycler) -> None:
        self._device, self._spec, self._memory = device, spec, memory
        self.offsets, self._bytes = dict[int, int](), 0
        for b, block in spec.attention.items():
            self.offsets[b] = self._bytes
            self._bytes += 4 * block.n_kv_heads * -(-block.head_dim // structs.LANES) * structs.LANES
        self._held = dict[int, tuple[Recycled, set[int]]]()

    def address(self, page: int) -> int:
        """The address of a page's bounds; 0 if it has none."""
        return self._held[page][0].at if page in self._held else 0

    def changed(self, page: int, blocks: Collection[int]) -> None:
        """Invalidate the bounds of these blocks: their rows change."""
        if page in self._held:
            self._held[page][1].difference_update(blocks)

    def forget(self, page: int) -> None:
        self._held.pop(page, None)

    def lacking(self, pages: Sequence[int], block: int) -> list[int]:
        """The pages whose bounds have yet to be made (`make`, then `made`); they have memory for them now."""
        found = [page for page in pages if page not in self._held or block not in self._held[page][1]]
        for page in found:
            if page not in self._held:
                self._held[page] = self._memory.take(self._bytes), set()
        return found

    def made(self, pages: Sequence[int], block: int) -> None:
        """Mark the bounds of a block in these pages as up to date."""
        for page in pages:
            self._held[page][1].add(block)

    def make(self, places: Sequence[tuple[int, int]], block: int, offset: int, row_bytes: int, kv: str) -> None:
        """Compute the bounds of a block in pages, given the addresses of pages and bounds; offset: of the block in a
        page."""
        if not places:
            return
        facts, held = self._spec.attention[block], Buffer.of(self._device, np.array(places, np.uint64))
        numbers = facts.head_dim, kv_format(facts, kv), row_bytes
        arguments = structs.bounds(held.at, offset, self.offsets[block], *numbers)
        self._device.launch("page_bounds", (len(places), facts.n_kv_heads, 1), 32, 0, arguments)
        self._device.synchronize()  # the address list is freed on return
