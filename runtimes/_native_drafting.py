"""Table drafters, tree merge and greedy verification in C++ (`kernels/cpu/spec_*.cpp`)."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from ctypes import c_int32, c_int64, c_void_p
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.kernels.cpu import drafting, library, structs
from edgedec.runtime import Calibrated, DraftingParts, Rows, TableRows, TableSettings, WatchPrices
from edgedec.runtimes._native_cache import address
from edgedec.runtimes._native_govern import NativeGovernor

# The most nodes of a merged tree.
_ROOM = 1024
_MEMORY = -1


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


class NativeDraftGroup:
    """The trees of one text's drafters, merged in C++."""

    def __init__(self, tables: Sequence[NativeDraftTable | None], calibrations: Sequence[Calibrated] = ()) -> None:
        self._lib, self._tables, n = library(), tables, len(tables)
        handles = (c_void_p * n)(*(None if table is None else table.handle for table in tables))
        self.address = self._lib.ed_drafting_new(handles, n)
        if not self.address:
            raise MemoryError("no memory for drafts")
        self._keep = [array for c in calibrations for array in (c.hits, c.tests, c.estimates)]
        self.calibrations = (c_void_p * (3 * len(calibrations)))(*map(address, self._keep))
        self.seconds = np.zeros(n)
        self._n = 0
        self._asked = structs.ProposalStruct(
            estimates=ctypes.addressof(self.calibrations), seconds=address(self.seconds)
        )
        self._ids, self._floats = np.zeros((4, _ROOM), np.int32), np.zeros((2, _ROOM))
        places = [address(row) for row in (*self._ids, *self._floats)]
        self._tree = structs.DraftTreeStruct(*places, room=_ROOM)
        self._few_ids, self._few_floats = np.zeros((4, _ROOM), np.int32), np.zeros((2, _ROOM))
        self._few = structs.DraftTreeStruct(*[address(row) for row in (*self._few_ids, *self._few_floats)], room=_ROOM)
        self._seen, self._watch = structs.VerifiedStruct(), structs.WatchStruct()
        self._pointers = tuple(map(ctypes.byref, (self._asked, self._tree, self._seen, self._watch)))

    def reset(self) -> None:
        self._lib.ed_drafting_reset(self.address)
        self._n = 0

    def propose(self, ids: Sequence[int], n_prompt: int, nodes: int, least: float, enabled: int) -> None:
        self._ask(ids, n_prompt, nodes, least)
        self._asked.enabled = enabled
        _raise(self._lib.ed_drafting_propose(self.address, self._pointers[0], self._pointers[1]))
        self._n = self._tree.n

    def watch(
        self, ids: Sequence[int], n_prompt: int, nodes: int, least: float, enabled: int, prices: WatchPrices
    ) -> int:
        self._ask(ids, n_prompt, nodes, least)
        self._asked.enabled = enabled
        seconds, watch = array("d", prices.seconds[: nodes + 2]), self._watch
        watch.seconds, watch.most = seconds.buffer_info()[0], len(seconds) - 1
        watch.text, watch.each, watch.trust, watch.first = prices[1:]
        _raise(self._lib.ed_drafting_watch(self.address, self._pointers[0], self._pointers[3]))
        return int(watch.nodes)

    def propose_one(
        self, number: int, ids: Sequence[int], n_prompt: int, nodes: int, least: float
    ) -> tuple[list[int], list[int], list[float]]:
        self._ask(ids, n_prompt, nodes, least)
        _raise(self._lib.ed_drafting_propose_one(self.address, number, self._pointers[0], self._pointers[1]))
        n = self._tree.n
        tokens, parents = self._ids[:2, :n].tolist()
        return tokens, parents, self._floats[0, :n].tolist()

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
        followed = (c_int64 * (2 * n))(*picked, *path)
        seen.picked = where = ctypes.addressof(followed)
        seen.path, seen.top_ids = where + 8 * n, None
        if best is not None:
            seen.top_ids, seen.top_scores, seen.top = address(best[0]), address(best[1]), best[0].shape[1]
        seconds = self._asked.seconds
        _raise(self._lib.ed_drafting_observe(self.address, self._pointers[2], enabled, seconds))

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
        self._n = 0

    def add(
        self, number: int, tokens: Sequence[int], parents: Sequence[int], p: Sequence[float], estimates: NDArray[Any]
    ) -> list[int]:
        n = len(tokens)
        places, claims = (c_int32 * n)(), (ctypes.c_double * n)(*p) if len(p) else None
        array = np.ascontiguousarray(estimates, np.float64)
        _raise(
            self._lib.ed_drafting_add(
                self.address, number, n, (c_int32 * n)(*tokens), (c_int32 * n)(*parents), claims, address(array), places
            )
        )
        return list(places)

    def order(self, chain: bool) -> list[int]:
        n = _raise(self._lib.ed_drafting_tree(self.address, chain, self._pointers[1]))
        self._n = self._tree.n
        found: list[int] = self._ids[2, :n].tolist()
        return found

    def best_first(self) -> list[int]:
        found: list[int] = self._ids[2, : self._n].tolist()
        return found

    def cut(self, nodes: Sequence[int]) -> tuple[list[int], list[int], list[float], list[int]]:
        n = len(nodes)
        _raise(self._lib.ed_drafting_cut(self.address, (c_int32 * n)(*nodes), n, ctypes.byref(self._few)))
        tokens, parents, _, by = self._few_ids[:, :n].tolist()
        return tokens, parents, self._few_floats[0, :n].tolist(), by

    def nodes(self) -> tuple[list[int], list[int], list[float], list[float], list[int]]:
        tokens, parents, _, by = self._ids[:, : self._n].tolist()
        p, chances = self._floats[:, : self._n].tolist()
        return tokens, parents, p, chances, by

    def test(self, picked: Sequence[int], calibrated: bool) -> list[int]:
        n = len(picked)
        path = (c_int32 * n)()
        calibrations = self.calibrations if calibrated else None
        found = self._lib.ed_drafting_test(self.address, (c_int64 * n)(*picked), n, calibrations, path)
        return path[:found]

    def __del__(self) -> None:
        if getattr(self, "address", None):
            self._lib.ed_drafting_free(self.address)
            self.address = None


def make_table(settings: TableSettings) -> NativeDraftTable | None:
    """A drafter with empty tables; None if the library has none for these settings."""
    options = structs.DrafterOptionsStruct(
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
    found = (c_int64 * (2 * n))()
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
