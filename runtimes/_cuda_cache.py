"""The CUDA engine's cache: tables of pages on the device; which row lies in which slot is known on the host."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.cache.merging import NoMerging
from edgedec.cache.pending import PendingTree
from edgedec.cache.slots import SlotMap
from edgedec.errors import ContextFull, SessionError, UsageError
from edgedec.runtime import Rows
from edgedec.runtimes import _cuda_saved
from edgedec.runtimes._cuda_pages import SLOTS, PagePool
from edgedec.runtimes._cuda_recurrent import DeviceRecurrent

Ints = NDArray[np.int64]
Arrays = dict[str, NDArray[Any]]


class PageTable:
    """The slots of the attention blocks that hold the same rows, and the pages they lie in."""

    def __init__(self, pool: PagePool, room: int = 0) -> None:
        self.pool, self.slots, self.pages, self.start = pool, SlotMap(room), list[int](), 0

    def copy(self) -> PageTable:
        """Another table of the same pages."""
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
        """Make slots first .. stop - 1 writable; what lies before them in their pages stays."""
        for at in range(first // SLOTS, -(-stop // SLOTS)):
            if at >= len(self.pages):
                self.pages.append(self.pool.take())
            elif self.pool.holders(self.pages[at]) > 1:
                page = self.pool.take()
                self.pool.copy(page, self.pages[at], blocks)
                self.pool.release([self.pages[at]])
                self.pages[at] = page

    def move(self, source: Sequence[int], target: Sequence[int], blocks: Sequence[int]) -> None:
        if len(source):
            self.own(min(target), max(target) + 1, blocks)
            self.pool.move(self.pages, source, target, blocks)

    def shrink(self) -> None:
        """Give back pages after the committed slots."""
        keep = -(-self.slots.committed // SLOTS)
        self.pool.release(self.pages[keep:])
        del self.pages[keep:]

    def identity(self) -> bool:
        """Is slot i of token i, at position i?"""
        plain = np.arange(self.slots.committed)
        return np.array_equal(self.slots.positions, plain) and np.array_equal(self.slots.tokens, plain)

    def __del__(self) -> None:
        if self.pages:
            self.pool.release(self.pages)
            self.pages = []


class CudaCache(NoMerging):
    """`edgedec.cache.Cache`; what it saves is what the native engine's cache saves."""

    def __init__(self, pool: PagePool, capacity: int, kv: str) -> None:
        self.spec, self.pool, self.capacity, self.kv, self.kind = pool.spec, pool, capacity, kv, f"native-{kv}"
        self.length, self._tree = 0, PendingTree()
        self._tables = dict.fromkeys(self.spec.attention, PageTable(pool))
        self.recurrent = {
            b: DeviceRecurrent(pool.device, pool.states, block) for b, block in self.spec.recurrent.items()
        }
        # Of the last call: what its recurrent blocks have to apply.
        self.updates = dict[int, list[tuple[int, int, int]]]()

    # ---- what a call does ----

    def check(self, blocks: Collection[int], rows: Rows) -> None:
        """ContextFull or UsageError if `begin` cannot make room for these rows."""
        chosen = {b for b in blocks if b in self._tables or b in self.recurrent}
        need = self.length + int(rows.row_numbers()[-1]) + 1
        if chosen and need > self.capacity:
            raise ContextFull(f"{need} rows do not fit a cache of {self.capacity}")
        if not rows.first:
            return
        if self._tree.done:
            raise UsageError(f"rows from {rows.first} on cannot be added: rows of that tree are committed already")
        for table, members in self._by_table():
            if any(b in chosen for b in members):
                table.slots.copy().write(rows)
        for b in chosen & self.recurrent.keys():
            self.recurrent[b].check(rows)

    def begin(self, blocks: Collection[int], rows: Rows) -> None:
        """Make room for a call's rows, which `check` has accepted, in the blocks that it runs."""
        chosen = {b for b in blocks if b in self._tables or b in self.recurrent}
        if not chosen:
            return
        if self._tree.write(rows):
            self._forget_pending()
        self._split(chosen)
        for table, members in self._by_table():
            if members[0] in chosen:
                table.write(rows, members)
        self.updates = {b: self.recurrent[b].begin(rows) for b in sorted(chosen & self.recurrent.keys())}

    def table(self, block: int) -> PageTable:
        return self._tables[block]

    # ---- edgedec.cache.Cache ----

    def slots(self, block: int) -> int:
        return self._tables[block].slots.committed if block in self._tables else 0

    def positions(self, block: int) -> Ints:
        return self._tables[block].slots.positions.copy()

    def commit(self, rows: Sequence[int]) -> None:
        self._tree.commit(rows)
        for table, blocks in self._by_table():
            table.move(*table.slots.commit(rows, self.length), blocks)
        for state in self.recurrent.values():
            state.commit(rows, self.length)
        self.length += len(rows)

    def rollback(self) -> None:
        self._tree.reset()
        self._forget_pending()

    def truncate(self, length: int) -> None:
        if not 0 <= length <= self.length:
            raise UsageError(f"cannot truncate {self.length} cached tokens to {length}")
        self._tree.reset()
        length = self._reachable(length)
        for table, _ in self._by_table():
            table.slots.truncate(length)
            table.shrink()
        for state in self.recurrent.values():
            state.truncate(length)
        self.length = length

    def fork(self, length: int | None = None, capacity: int | None = None) -> CudaCache:
        length = self.length if length is None else length
        if not 0 <= length <= self.length:
            raise UsageError(f"cannot fork {length} of {self.length} cached tokens")
        twin = CudaCache(self.pool, self.capacity if capacity is None else capacity, self.kv)
        if length > twin.capacity:
            raise ContextFull(f"{length} tokens do not fit a cache of {twin.capacity}")
        copies = {id(table): table.copy() for table, _ in self._by_table()}
        twin._tables = {b: copies[id(table)] for b, table in self._tables.items()}
        twin.recurrent = {b: state.copy() for b, state in self.recurrent.items()}
        twin.length = self.length
        twin.truncate(length)
        return twin

    def drop(self, block: int, slots: Sequence[int] | Ints) -> None:
        if block not in self._tables:
            raise UsageError(f"block {block} keeps no slots that could be dropped")
        gone = sorted({int(slot) for slot in slots})
        if gone and not 0 <= gone[0] <= gone[-1] < self.slots(block):
            raise UsageError(f"slots {gone[0]} to {gone[-1]}: the block holds {self.slots(block)}")
        self.rollback()
        self._split({block})
        table = self._tables[block]
        stay = table.slots.drop(gone)
        moved = stay != np.arange(len(stay))
        table.move(stay[moved].tolist(), np.flatnonzero(moved).tolist(), [block])
        table.shrink()

    def save(self) -> Arrays:
        state = _cuda_saved.save(self.pool, self.kv, self.length, self._tables, self.recurrent)
        return {"length": np.array([self.length], np.int64), "state": state}

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        wrong = SessionError(f"cached values are not of a {self.kind} cache of this model")
        state, length = arrays.get("state"), arrays.get("length")
        if len(arrays) != 2 or state is None or length is None or state.dtype != np.uint8 or state.ndim != 1:
            raise wrong
        saved = _cuda_saved.read(state, self.spec, self.kv, self.pool.rows, self.capacity)
        if saved is None or length.dtype != np.int64 or length.tolist() != [saved.length]:
            raise wrong
        self._tree.reset()
        self._tables = _loaded_tables(self.pool, saved)
        for b, part in saved.states.items():
            self.recurrent[b].load(part.history, part.state, part.length, part.slots)
        self.length = saved.length

    def page_ids(self) -> Ints:
        table = next(iter(self._tables.values()), None)
        kept = -(-table.slots.committed // SLOTS) if table else 0
        return np.array(table.pages[:kept] if table else [], np.int64)

    @property
    def nbytes(self) -> int:
        pages = {page for table, _ in self._by_table() for page in table.pages}
        return len(pages) * self.pool.page_bytes + sum(state.nbytes for state in self.recurrent.values())

    # ---- tables ----

    def _forget_pending(self) -> None:
        for table, _ in self._by_table():
            table.slots.rollback()
        for state in self.recurrent.values():
            state.rollback()

    def _reachable(self, length: int) -> int:
        """The longest text up to `length` that all recurrent blocks can go back to."""
        while True:
            found = min((state.reachable(length) for state in self.recurrent.values()), default=length)
            if found == length:
                return length
            length = found

    def _by_table(self) -> list[tuple[PageTable, list[int]]]:
        """Each table with the blocks that share it."""
        groups: dict[int, tuple[PageTable, list[int]]] = {}
        for b, table in self._tables.items():
            groups.setdefault(id(table), (table, []))[1].append(b)
        return list(groups.values())

    def _split(self, chosen: Collection[int]) -> None:
        """Give these blocks tables that no other block shares."""
        for table, members in self._by_table():
            apart = [b for b in members if b in chosen]
            if apart and len(apart) < len(members):
                self._tables |= dict.fromkeys(apart, table.copy())


def _loaded_tables(pool: PagePool, saved: _cuda_saved.Saved) -> dict[int, PageTable]:
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
            pool.device.write(pool.address(page) + pool.offsets[b], rows)
    return tables
