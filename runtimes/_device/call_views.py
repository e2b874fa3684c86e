"""The page tables of a call's sequences by block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgedec.runtimes._device.cache import PagedCache
from edgedec.runtimes._device.table import PageTable


@dataclass(frozen=True)
class Views:
    """The tables of a call's sequences; blocks with the same slots share one view. of: the view of each attention
    block; tables: for each view, one table per sequence."""

    of: dict[int, int]
    tables: list[list[PageTable]]

    @classmethod
    def make(cls, blocks: Sequence[int], caches: Sequence[PagedCache]) -> Views:
        of, tables, known = dict[int, int](), list[list[PageTable]](), dict[tuple[int, ...], int]()
        for b in blocks:
            if b not in caches[0].spec.attention:
                continue
            found = [cache.table(b) for cache in caches]
            if tables and found == tables[-1]:  # usually the same as in the previous block
                of[b] = len(tables) - 1
                continue
            of[b] = known.setdefault(tuple(id(table) for table in found), len(tables))
            if of[b] == len(tables):
                tables.append(found)
        return cls(of, tables)
