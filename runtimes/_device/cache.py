"""The KV cache of engines with pages on a device; slot bookkeeping is on the host."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgedec.cache.base import MOST_ATTACHED, Weights, checked_drop, slotted
from edgedec.cache.merging import NoOffload, checked_merge
from edgedec.cache.pending import PendingTree
from edgedec.errors import ContextFull, SessionError, UsageError
from edgedec.runtime import Rows
from edgedec.runtimes._device import editing
from edgedec.runtimes._device import rest as rest_of
from edgedec.runtimes._device import saved as saved_state
from edgedec.runtimes._device.pages import SLOTS, PagePool
from edgedec.runtimes._device.pieces import DevicePiece
from edgedec.runtimes._device.recurrent import DeviceRecurrent, recurring
from edgedec.runtimes._device.table import PageTable, loaded_tables

Ints = NDArray[np.int64]
Arrays = dict[str, NDArray[Any]]
# Pages that a call may need per table besides those it fills: copies of shared pages.
SPARE_PAGES = 2
_P = ParamSpec("_P")
_R = TypeVar("_R")


def _alone(method: Callable[Concatenate[PagedCache, _P], _R]) -> Callable[Concatenate[PagedCache, _P], _R]:
    """Wrap a method so that no other thread uses the device while it runs."""

    @wraps(method)
    def run(self: PagedCache, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        with self.pool.busy:
            return method(self, *args, **kwargs)

    return run


class PagedCache(NoOffload):
    """`edgedec.cache.Cache`; what it saves is what the native engine's cache saves."""

    def __init__(self, pool: PagePool, capacity: int, kv: str) -> None:
        self.spec, self.pool, self.capacity, self.kv, self.kind = pool.spec, pool, capacity, kv, f"native-{kv}"
        self.length, self._tree = 0, PendingTree()
        self._tables = dict.fromkeys(self.spec.attention, PageTable(pool))
        with pool.busy:
            states = recurring(self.spec).items()
            self.recurrent = {b: DeviceRecurrent(pool.device, pool.states, block) for b, block in states}
        self._grouped: tuple[list[PageTable], list[tuple[PageTable, list[int]]]] = ([], [])
        # The state updates that the recurrent blocks of the last call have to apply.
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
        """Make a call's rows, accepted by `check`, the pending ones; reserve room in its recurrent blocks."""
        chosen = {b for b in blocks if b in self._tables or b in self.recurrent}
        if chosen and self._tree.write(rows):
            self._forget_pending()
        self.updates = {b: self.recurrent[b].begin(rows) for b in sorted(chosen & self.recurrent.keys())}

    def make_room(self, blocks: Collection[int], rows: Rows) -> None:
        """Allocate pages for the rows of a begun call, in the attention blocks that it runs."""
        chosen = {b for b in blocks if b in self._tables}
        self._split(chosen)
        for table, members in self._by_table():
            if members[0] in chosen:
                table.write(rows, members)

    def pieces(self) -> list[DevicePiece]:
        """The memory pieces that the recurrent blocks of a begun call work on."""
        return [piece for b in self.updates for piece in self.recurrent[b].pieces()]

    def piece_bytes(self, rows: Rows) -> int:
        """Bytes of the pieces that recurrent blocks work on in a call of these rows."""
        return sum(state.bytes_of(rows) for state in self.recurrent.values())

    def table(self, block: int) -> PageTable:
        return self._tables[block]

    def pages(self) -> list[int]:
        """All pages of all blocks."""
        return [page for table, _ in self._by_table() for page in table.pages]

    def new_pages(self, rows: Rows) -> int:
        """The most pages that a call's rows add, copies of shared pages included."""
        tables = [table for table, _ in self._by_table()]
        grown = sum(max(-(-(t.slots.committed + len(rows)) // SLOTS) - len(t.pages), 0) for t in tables)
        return grown + SPARE_PAGES * len(tables)

    # ---- edgedec.cache.Cache ----

    def slots(self, block: int) -> int:
        return self._tables[block].slots.committed if block in self._tables else 0

    def positions(self, block: int) -> Ints:
        return self._tables[block].slots.positions.copy()

    @_alone
    def commit(self, rows: Sequence[int]) -> None:
        self._tree.commit(rows)
        for table, blocks in self._by_table():
            table.move(*table.slots.commit(rows, self.length), blocks)
        for state in self.recurrent.values():
            state.commit(rows, self.length)
        self.length += len(rows)

    def attach(self, rows: int) -> None:
        if not 0 < rows <= self._tree.size or self._tree.done or not self.length:
            raise UsageError(f"{rows} rows cannot be attached: {self._tree.size} are pending")
        if self.recurrent:
            raise UsageError("rows cannot be attached: a recurrent block keeps no slots")
        tables = self._by_table()
        if any(table.slots.committed + rows > self.length + MOST_ATTACHED for table, _ in tables):
            raise ContextFull(f"{rows} rows cannot be attached: at most {MOST_ATTACHED} slots more than tokens")
        for table, _ in tables:
            table.slots.attach(rows, self.length)
        self.rollback()

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

    @_alone
    def fork(self, length: int | None = None, capacity: int | None = None) -> PagedCache:
        length = self.length if length is None else length
        if not 0 <= length <= self.length:
            raise UsageError(f"cannot fork {length} of {self.length} cached tokens")
        twin = PagedCache(self.pool, self.capacity if capacity is None else capacity, self.kv)
        if length > twin.capacity:
            raise ContextFull(f"{length} tokens do not fit a cache of {twin.capacity}")
        copies = {id(table): table.copy() for table, _ in self._by_table()}
        twin._tables = {b: copies[id(table)] for b, table in self._tables.items()}
        twin.recurrent = {b: state.copy() for b, state in self.recurrent.items()}
        twin.length = self.length
        twin.truncate(length)
        return twin

    @_alone
    def drop(self, block: int, slots: Sequence[int] | Ints) -> None:
        slotted(self.spec, block, "dropped")
        gone = sorted({int(slot) for slot in slots})
        if gone and not 0 <= gone[0] <= gone[-1] < self.slots(block):
            raise UsageError(f"slots {gone[0]} to {gone[-1]}: the block holds {self.slots(block)}")
        table = self._own_table(block)
        stay = table.slots.drop(gone)
        moved = stay != np.arange(len(stay))
        table.move(stay[moved].tolist(), np.flatnonzero(moved).tolist(), [block])
        table.shrink()

    @_alone
    def drop_by_head(self, block: int, slots: Ints) -> None:
        gone = checked_drop(self.spec, block, slots)
        if gone.size and not 0 <= gone.min() <= gone.max() < self.slots(block):
            raise UsageError(f"slots {gone.min()} to {gone.max()}: the block holds {self.slots(block)}")
        if gone.size:
            editing.drop_by_head(self._own_table(block), block, gone)

    @_alone
    def merge(self, block: int, into: Sequence[int], slots: Sequence[int], weights: Weights) -> None:
        facts = self.spec.attention[slotted(self.spec, block, "merged")]
        target, source, shares = checked_merge(into, slots, weights, facts.n_kv_heads, self.slots(block))
        self.rollback()
        table, members = next(pair for pair in self._by_table() if block in pair[1])
        if len(source):
            editing.merge(table, members, block, self.kv, target, source, shares)

    @_alone
    def keys(self, block: int, start: int = 0) -> NDArray[np.float32]:
        return editing.keys(self._tables[slotted(self.spec, block, "read")], block, self.kv, start)

    @_alone
    def save(self) -> Arrays:
        state = saved_state.save(self.pool, self.kv, self.length, self._tables, self.recurrent)
        return {"length": np.array([self.length], np.int64), "state": state}

    @_alone
    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        wrong = SessionError(f"cached values are not of a {self.kind} cache of this model")
        state, length = arrays.get("state"), arrays.get("length")
        if len(arrays) != 2 or state is None or length is None or state.dtype != np.uint8 or state.ndim != 1:
            raise wrong
        saved = saved_state.read(state, self.spec, self.kv, self.pool.rows, self.capacity)
        if saved is None or length.dtype != np.int64 or length.tolist() != [saved.length]:
            raise wrong
        self._tree.reset()
        self._tables, self._grouped = loaded_tables(self.pool, saved), ([], [])  # frees the old tables' pages
        for b, part in saved.states.items():
            self.recurrent[b].load(part.history, part.state, part.length, part.slots)
        self.length = saved.length

    @_alone
    def save_rest(self, start: int) -> NDArray[np.uint8] | None:
        """As `GrowingCache`."""
        if not 0 <= start <= self.length or not rest_of.contiguous(self.length, self._tables, self.recurrent):
            return None
        return rest_of.save_rest(self.pool, self.kv, start, self.length, self._tables, self.recurrent)

    @_alone
    def append(self, rest: NDArray[np.uint8]) -> bool:
        """As `GrowingCache`."""
        end = rest_of.rest_length(rest, self.pool, self.kv, self.length, self.capacity)
        if end is None or not rest_of.contiguous(self.length, self._tables, self.recurrent):
            return False
        self.rollback()
        try:
            rest_of.append(rest, self.pool, self._tables, self.recurrent, self.length, end)
        except MemoryError:
            self.truncate(self.length)
            raise
        self.length = end
        return True

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
        """Each table once, with the blocks that share it."""
        now = list(self._tables.values())
        if now != self._grouped[0]:  # tables are equal where they are the same
            groups: dict[int, tuple[PageTable, list[int]]] = {}
            for b, table in self._tables.items():
                groups.setdefault(id(table), (table, []))[1].append(b)
            self._grouped = now, list(groups.values())
        return self._grouped[1]

    def _own_table(self, block: int) -> PageTable:
        """The table of a block before a change: made exclusive to the block, pending rows removed."""
        self.rollback()
        self._split({block})
        return self._tables[block]

    def _split(self, chosen: Collection[int]) -> None:
        """Give these blocks tables that no other block shares."""
        for table, members in self._by_table():
            apart = [b for b in members if b in chosen]
            if apart and len(apart) < len(members):
                self._tables |= dict.fromkeys(apart, table.copy())
