"""Table drafters, tree merge and greedy verification in C++ (`kernels/cpu/spec_*.cpp`)."""

from __future__ import annotations

import ctypes
import threading
from array import array
from collections.abc import Sequence
from ctypes import c_double, c_int32, c_int64, c_void_p
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.kernels.cpu import drafting, drafting_structs, library
from edgedec.runtime import Calibrated, DraftingParts, Rows, TableRows, TableSettings, WatchPrices
from edgedec.runtimes._native_cache import address
from edgedec.runtimes._native_govern import NativeGovernor

# The most nodes of a merged tree.
_ROOM = 1024
_MEMORY = -1


@lru_cache(512)
def _array(kind: Any, n: int) -> Any:
    """The type of `kind * n`, kept: ctypes makes it anew, in a reference cycle, where no such array is left."""
    return kind * n


class NativeDraftTable:
    """The tables of one drafter."""

    def __init__(self, handle: int | None, settings: TableSettings) -> None:
        if not handle:
            raise MemoryError("no memory for a drafter")
        self.handle, self._settings, self._lib = handle, settings, library()
        self._indexed: list[NDArray[Any]] = []  # the library reads these where they lie

    def share(self, owner: NativeDraftTable) -> None:
        _raise(self._lib.ed_drafter_share(self.handle, owner.handle))

    def fork(self) -> NativeDraftTable:
        twin = NativeDraftTable(self._lib.ed_drafter_fork(self.handle), self._settings)
        twin._indexed = list(self._indexed)
        return twin

    def index(self, tokens: NDArray[Any], order: NDArray[Any]) -> None:
        arrays = [np.ascontiguousarray(array, np.int32) for array in (tokens, order)]
        self._indexed += arrays
        _raise(self._lib.ed_drafter_index(self.handle, *map(address, arrays), min(map(len, arrays))))

    def figure(self, what: int = 0) -> int:
        return int(self._lib.ed_drafter_figure(self.handle, what))

    def save(self, part: int, n: int, k: int) -> TableRows:
        keys, visits = np.empty(n, np.int64), np.empty(n, np.int32)
        ids, p = np.empty((n, k), np.int32), np.empty((n, k), np.float32)
        places = [address(array) for array in (keys, ids, p, visits)]
        _raise(self._lib.ed_drafter_save(self.handle, part, *places))
        return keys, ids, p, visits

    def load(self, part: int, rows: TableRows) -> None:
        kinds = (np.int64, np.int32, np.float32, np.int32)
        arrays = [np.ascontiguousarray(array, kind) for array, kind in zip(rows, kinds, strict=True)]
        _raise(self._lib.ed_drafter_load(self.handle, part, len(arrays[0]), *map(address, arrays)))

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self._lib.ed_drafter_free(self.handle)
            self.handle = 0


class _Tree(threading.local):
    """Where the library writes a tree, one for each thread: a group copies its few nodes out before it returns, so that
    thousands of texts do not each hold room for the largest tree."""

    def __init__(self) -> None:
        self.ids, self.floats = np.zeros((4, _ROOM), np.int32), np.zeros((2, _ROOM))
        self.struct = drafting_structs.DraftTreeStruct(*map(address, (*self.ids, *self.floats)), room=_ROOM)
        self.pointer = ctypes.byref(self.struct)


_tree = _Tree()
_NO_IDS, _NO_FLOATS = np.zeros((4, 0), np.int32), np.zeros((2, 0))


class NativeDraftGroup:
    """The trees of one text's drafters, merged in C++."""

    def __init__(self, tables: Sequence[NativeDraftTable | None], calibrations: Sequence[Calibrated] = ()) -> None:
        self._lib, self._tables, n = library(), tables, len(tables)
        handles = _array(c_void_p, n)(*(None if table is None else table.handle for table in tables))
        self.address = self._lib.ed_drafting_new(handles, n)
        if not self.address:
            raise MemoryError("no memory for drafts")
        self._keep = [array for c in calibrations for array in (c.hits, c.tests, c.estimates)]
        self.calibrations = _array(c_void_p, 3 * len(calibrations))(*map(address, self._keep))
        self.seconds = np.zeros(n)
        self._asked = drafting_structs.ProposalStruct(
            estimates=ctypes.addressof(self.calibrations), seconds=address(self.seconds)
        )
        self._seen, self._watch = drafting_structs.VerifiedStruct(), drafting_structs.WatchStruct()
        self._pointers = tuple(map(ctypes.byref, (self._asked, self._seen, self._watch)))
        self._forget()

    def _forget(self) -> None:
        # The tree of the last `propose` or `order`: tokens, parents, order and drafters; chances and path chances.
        self._ids, self._floats = _NO_IDS, _NO_FLOATS

    def _copy_tree(self) -> None:
        """Copy the tree that the library has just written."""
        n = _tree.struct.n
        self._ids, self._floats = _tree.ids[:, :n].copy(), _tree.floats[:, :n].copy()

    def reset(self) -> None:
        self._lib.ed_drafting_reset(self.address)
        self._forget()

    def propose(self, ids: Sequence[int], n_prompt: int, nodes: int, least: float, enabled: int) -> None:
        self._ask(ids, n_prompt, nodes, least)
        self._asked.enabled = enabled
        _raise(self._lib.ed_drafting_propose(self.address, self._pointers[0], _tree.pointer))
        self._copy_tree()

    def watch(
        self, ids: Sequence[int], n_prompt: int, nodes: int, least: float, enabled: int, prices: WatchPrices
    ) -> int:
        self._ask(ids, n_prompt, nodes, least)
        self._asked.enabled = enabled
        seconds, watch = array("d", prices.seconds[: nodes + 2]), self._watch
        watch.seconds, watch.most = seconds.buffer_info()[0], len(seconds) - 1
        watch.text, watch.each, watch.trust, watch.first = prices[1:]
        _raise(self._lib.ed_drafting_watch(self.address, self._pointers[0], self._pointers[2]))
        return int(watch.nodes)

    def propose_one(
        self, number: int, ids: Sequence[int], n_prompt: int, nodes: int, least: float
    ) -> tuple[list[int], list[int], list[float]]:
        self._ask(ids, n_prompt, nodes, least)
        _raise(self._lib.ed_drafting_propose_one(self.address, number, self._pointers[0], _tree.pointer))
        n = _tree.struct.n
        tokens, parents = _tree.ids[:2, :n].tolist()
        return tokens, parents, _tree.floats[0, :n].tolist()

    def _ask(self, ids: Sequence[int], n_prompt: int, nodes: int, least: float) -> None:
        """Fill in the arguments of a proposal; only new tokens of the text are passed."""
        self._more = self.unread(ids)
        n, asked = len(self._more), self._asked
        asked.more = self._more.buffer_info()[0]
        asked.n_more, asked.prompt, asked.nodes, asked.least = n, n_prompt, nodes, least

    def observe(
        self,
        rows: Rows,
        root: int,
        path: Sequence[int],
        picked: Sequence[int],
        best: tuple[NDArray[Any], NDArray[Any]] | None,
        enabled: int,
    ) -> None:
        seen, n = self._seen, len(path)
        seen.tokens, seen.parents = address(rows.tokens), address(rows.parents)
        seen.rows, seen.root, seen.accepted = len(rows), root, n
        followed = _array(c_int64, 2 * n)(*picked, *path)
        seen.picked = where = ctypes.addressof(followed)
        seen.path, seen.top_ids = where + 8 * n, None
        if best is not None:
            seen.top_ids, seen.top_scores, seen.top = address(best[0]), address(best[1]), best[0].shape[1]
        seconds = self._asked.seconds
        _raise(self._lib.ed_drafting_observe(self.address, self._pointers[1], enabled, seconds))

    def governor(
        self, bank: Any, account: Any, record: Any, shared: Any, top: int, enabled: int, named: bool
    ) -> NativeGovernor:
        return NativeGovernor(self, (bank, account, record, shared), top, enabled, named)

    def unread(self, ids: Sequence[int]) -> array[int]:
        """The tokens of the text that the tables have not read; they read them next."""
        read = self._lib.ed_drafting_read(self.address)
        if len(ids) < read:  # not expected between resets; reading everything again keeps the tables right
            self.reset()
            read = 0
        return array("i", ids[read:])

    def clear(self) -> None:
        self._lib.ed_drafting_clear(self.address)
        self._forget()

    def add(
        self, number: int, tokens: Sequence[int], parents: Sequence[int], p: Sequence[float], estimates: NDArray[Any]
    ) -> list[int]:
        n = len(tokens)
        places, claims = _array(c_int32, n)(), _array(c_double, n)(*p) if len(p) else None
        array, ints = np.ascontiguousarray(estimates, np.float64), _array(c_int32, n)
        below = ints(*tokens), ints(*parents), claims, address(array), places
        _raise(self._lib.ed_drafting_add(self.address, number, n, *below))
        return list(places)

    def order(self, chain: bool) -> list[int]:
        n = _raise(self._lib.ed_drafting_tree(self.address, chain, _tree.pointer))
        self._copy_tree()
        found: list[int] = self._ids[2, :n].tolist()
        return found

    def best_first(self) -> list[int]:
        found: list[int] = self._ids[2].tolist()
        return found

    def cut(self, nodes: Sequence[int]) -> tuple[list[int], list[int], list[float], list[int]]:
        n = len(nodes)
        _raise(self._lib.ed_drafting_cut(self.address, _array(c_int32, n)(*nodes), n, _tree.pointer))
        tokens, parents, _, by = _tree.ids[:, :n].tolist()
        return tokens, parents, _tree.floats[0, :n].tolist(), by

    def nodes(self) -> tuple[list[int], list[int], list[float], list[float], list[int]]:
        tokens, parents, _, by = self._ids.tolist()
        p, chances = self._floats.tolist()
        return tokens, parents, p, chances, by

    def test(self, picked: Sequence[int], calibrated: bool) -> list[int]:
        n = len(picked)
        path = _array(c_int32, n)()
        calibrations = self.calibrations if calibrated else None
        found = self._lib.ed_drafting_test(self.address, _array(c_int64, n)(*picked), n, calibrations, path)
        return path[:found]

    def __del__(self) -> None:
        if getattr(self, "address", None):
            self._lib.ed_drafting_free(self.address)
            self.address = None


def make_table(settings: TableSettings) -> NativeDraftTable | None:
    """A drafter with empty tables; None if the library has none for these settings."""
    options = drafting_structs.DrafterOptionsStruct(
        drafting.KINDS[settings.kind],
        settings.vocab,
        settings.nodes,
        settings.k,
        settings.ngram,
        settings.length,
        settings.rate,
        settings.explore,
    )
    handle = library().ed_drafter_new(ctypes.byref(options))
    return NativeDraftTable(handle, settings) if handle else None


def walk(rows: Rows, root: int, largest: NDArray[np.int32]) -> tuple[list[int], list[int]]:
    """Greedy verification: the accepted rows and the token picked after each. largest: int32 [rows - root, ..], the
    best tokens of each row; empty lists if one of them is -1."""
    n = len(rows) - root
    found = _array(c_int64, 2 * n)()
    where = ctypes.addressof(found)
    tokens, parents, choices = address(rows.tokens), address(rows.parents), address(largest)
    count = library().ed_walk(tokens, parents, len(rows), root, choices, largest.shape[1], where, where + 8 * n)
    return found[:count], found[n : n + count]


def _raise(code: int) -> int:
    if code == _MEMORY:
        raise MemoryError("no memory for drafts")
    if code < 0:
        raise ValueError("a draft that the library refuses")
    return code


PARTS = DraftingParts(make_table, NativeDraftGroup, walk)
