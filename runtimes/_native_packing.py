"""Calls as the native engine's library reads them. This runs in every step, so rare cases are in separate functions."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import sizeof
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle import Bundle
from edgedec.errors import UsageError
from edgedec.kernels.cpu.structs import SequenceRows, pack_sequence
from edgedec.runtime import Call, CallResult, Outputs, Rows
from edgedec.runtime.checks import check_named, check_text, entering_width
from edgedec.runtimes._native_adapter import NativeAdapter
from edgedec.runtimes._native_cache import NativeCache, address
from edgedec.runtimes._native_outputs import attention_arrays, head_arrays, query_arrays
from edgedec.runtimes._native_readout import NativeReadouts
from edgedec.runtimes._native_sampler import NO_DRAW, draw_fields
from edgedec.runtimes._native_views import NativeViews
from edgedec.spec import ModelSpec

_MOST_BLOCK_LISTS = 256
# Fields of a packed call by their numbers, in words: what differs between calls that are alike.
_WORD = 8
_CACHE_WORD, *_ROW_WORDS = (getattr(SequenceRows, name).offset // _WORD for name in ("cache", "tokens", "positions"))
_ARRAY_WORDS = [
    getattr(SequenceRows, name).offset // _WORD for name in ("logits", "top_ids", "top_scores", "logsum", "entropy")
]


class CallPacker:
    """Packs calls on one model. Lists of blocks, adapters, readouts and views are made once and reused."""

    def __init__(self, bundle: Bundle) -> None:
        self._spec = bundle.spec
        self._block_lists: dict[tuple[int, ...], NDArray[np.int32]] = {}
        self._adapters: WeakKeyDictionary[Any, NativeAdapter] = WeakKeyDictionary()
        self._readouts, self._views = NativeReadouts(bundle), NativeViews(self._spec)

    def pack(
        self, call: Call, logits: NDArray[np.float32] | None, drawn_at: int, keep: list[Any]
    ) -> tuple[bytes, CallResult]:
        """A call as bytes, and the result whose arrays the library fills. logits: an existing array to use; keep:
        collects the arrays that the bytes point to."""
        rows, _, blocks, hidden, wanted, adapter, views = call
        cache, count = self._own_cache(call), rows.count
        if wanted.head:
            _check_head(wanted, count)
        head_rows = max(0, count - wanted.logits_from)
        arrays, top, arrays_at = head_arrays(self._spec.vocab_size, wanted, head_rows, logits)
        states, names_at, states_at = self._states(wanted.hidden, count, keep) if wanted.hidden else ({}, 0, 0)
        paid, paid_at = attention_arrays(self._spec, call, cache, keep) if wanted.attention else ({}, 0)
        queries, queries_at = query_arrays(self._spec, call, keep) if wanted.queries else ({}, 0)
        given = beside = 0
        if hidden is not None or rows.embeddings is not None:
            given, beside = self._entering(hidden, blocks, rows, keep)
        n_blocks, chosen = (-1, 0) if blocks is None else self._block_list(blocks)
        data = pack_sequence(
            count,
            rows.first,
            n_blocks,
            wanted.logits_from if wanted.head and head_rows else -1,
            top,
            len(wanted.hidden),
            wanted.temperature,
            cache.handle.address,
            chosen,
            *_row_fields(rows, given, keep),
            *arrays_at,
            names_at,
            states_at,
            paid_at,
            self._adapter(adapter, keep) if adapter is not None else 0,
            beside,
            self._readouts.address(wanted, keep) if wanted.readout is not None else 0,
            queries_at,
            self._views.address(views, blocks, cache, keep) if views else 0,
            *(NO_DRAW if wanted.draw is None else draw_fields(wanted.draw, drawn_at, keep)),
        )
        keep.append(cache)
        logits, ids, scores, logsum, entropy = arrays
        return data, CallResult(logits, ids, scores, logsum, entropy, states, paid, queries)

    def pack_alike(self, calls: Sequence[Call], keep: list[Any]) -> tuple[bytes, list[CallResult]] | None:
        """As `pack` of calls of one row each that differ in it and in their caches only, as those of beams do: their
        results lie side by side. None for other calls."""
        if not _are_alike(calls, self._spec):
            return None
        wanted, adapter, n = calls[0].outputs, calls[0].adapter, len(calls)
        _check_head(wanted, 1)
        arrays, top, arrays_at = head_arrays(self._spec.vocab_size, wanted, n, None)
        tokens = np.concatenate([call.rows.tokens for call in calls], dtype=np.int64)
        positions = np.concatenate([call.rows.positions for call in calls], dtype=np.int64)
        keep += (tokens, positions, calls)
        own = self._adapter(adapter, keep) if adapter is not None else 0
        rows_at = (address(tokens), 0, address(positions), 0, 0, 0, 0)
        first = pack_sequence(
            1, 0, -1, 0, top, 0, wanted.temperature, 0, 0, *rows_at, *arrays_at, 0, 0, 0, own, *[0] * 6, 0.0
        )
        strides = tuple([0 if array is None else array.strides[0] for array in arrays])
        words = np.frombuffer(first, np.int64) + _strides(n, strides)
        words[:, _CACHE_WORD] = [call.cache.handle.address for call in calls]  # type: ignore[attr-defined]
        each = [[None] * n if array is None else list(array[:, None]) for array in arrays]
        return words.tobytes(), list(map(CallResult, *each))

    def _own_cache(self, call: Call) -> NativeCache:
        """The cache of a call; UsageError for one of another engine or model."""
        cache = call.cache
        if not isinstance(cache, NativeCache):
            raise UsageError("a cache of another engine")
        if cache.spec is not self._spec and cache.spec != self._spec:
            raise UsageError("a cache of another model")
        if self._spec.output is not None:
            check_text(call, self._spec, enters=True)
        groups = call.rows.groups
        if groups is not None and self._spec.recurrent and (groups >= 0).any():
            raise UsageError("rows in groups: a recurrent block has no state of rows that see each other")
        return cache

    def _entering(
        self, hidden: NDArray[np.float32] | None, blocks: Sequence[int] | None, rows: Rows, keep: list[Any]
    ) -> tuple[int, int]:
        """The addresses of the states that enter the first block of the call, and of the embeddings."""
        check_named(rows, self._spec)
        beside = 0 if rows.embeddings is None else self._floats(rows.embeddings, rows.count, keep)
        if hidden is None:
            return beside, beside
        blocks = range(self._spec.n_blocks) if blocks is None else blocks
        width = entering_width(self._spec, blocks, hidden.shape[-1])
        if not len(blocks) and hidden.shape[-1] == width:  # the head reads no streams
            width, hidden = self._spec.hidden_size, hidden[:, : self._spec.hidden_size]
        return self._floats(hidden, rows.count, keep, width), beside

    def _floats(self, states: NDArray[np.float32], count: int, keep: list[Any], width: int = 0) -> int:
        array = np.ascontiguousarray(states, np.float32)
        expected = (count, width or self._spec.hidden_size)
        if array.shape != expected:
            raise UsageError(f"hidden {list(array.shape)}: expected {list(expected)}")
        keep.append(array)
        return address(array)

    def _block_list(self, blocks: Sequence[int]) -> tuple[int, int]:
        """The number of blocks and the address of their list; lists are cached because the same few recur."""
        key = tuple(blocks)
        if key not in self._block_lists:
            if len(self._block_lists) >= _MOST_BLOCK_LISTS:
                self._block_lists = {}
            self._block_lists[key] = np.array(key, np.int32)
        return len(key), address(self._block_lists[key])

    def _states(
        self, blocks: tuple[int, ...], count: int, keep: list[Any]
    ) -> tuple[dict[int, NDArray[np.float32]], int, int]:
        """Arrays [count, width] by block, and the addresses of the block numbers and of their list."""
        names = np.array(blocks, np.int32)
        states = {block: np.empty((count, self._spec.width(block)), np.float32) for block in blocks}
        places = np.array([address(states[block]) for block in blocks], np.uintp)
        keep += (names, places)
        return states, address(names), address(places)

    def _adapter(self, adapter: Any, keep: list[Any]) -> int:
        found = self._adapters.get(adapter)
        if found is None:
            found = self._adapters[adapter] = NativeAdapter(self._spec, adapter)
        keep.append(found)
        return found.address


@lru_cache(maxsize=64)
def _strides(n: int, arrays: tuple[int, ...]) -> NDArray[np.int64]:
    """What is added to the fields of the first of n calls that are alike [n, words]. arrays: from the results of one to
    those of the next."""
    steps = np.zeros(sizeof(SequenceRows) // _WORD, np.int64)
    steps[_ROW_WORDS], steps[_ARRAY_WORDS] = _WORD, arrays
    return np.arange(n)[:, None] * steps


def _are_alike(calls: Sequence[Call], spec: ModelSpec) -> bool:
    """Whether `CallPacker.pack_alike` packs these calls: the whole stack on one row by its token, the same outputs of
    the head alone."""
    wanted, adapter = calls[0].outputs, calls[0].adapter
    if wanted.hidden or wanted.attention or wanted.queries or wanted.readout is not None or wanted.draw is not None:
        return False
    if not wanted.head or wanted.logits_from or spec.output is not None:
        return False
    for rows, cache, blocks, hidden, outputs, own, views in calls:
        if outputs is not wanted or own is not adapter or blocks is not None or hidden is not None or views:
            return False
        if not isinstance(cache, NativeCache) or cache.spec is not spec:
            return False
        if len(rows.tokens) != 1 or rows.first or not rows.is_chain:
            return False
        if rows.embeddings is not None or rows.numbers is not None:
            return False
    return True


def _row_fields(rows: Rows, given: int, keep: list[Any]) -> tuple[int, ...]:
    """The addresses of tokens, entering states, positions, parents, groups, numbers and types of the rows."""
    n = len(rows)
    tokens = np.ascontiguousarray(rows.tokens, np.int64)
    keep.append(tokens)
    parents = groups = 0
    if not rows.is_chain:
        parents = _ints(rows.parents, n, keep)
        groups = 0 if rows.groups is None else _ints(rows.groups, n, keep)
    numbers = 0 if rows.numbers is None else _ints(rows.numbers, n, keep)
    types = 0 if rows.types is None else _ints(rows.types, n, keep)
    return address(tokens), given, _ints(rows.positions, n, keep), parents, groups, numbers, types


def _ints(values: NDArray[np.int64], n: int, keep: list[Any]) -> int:
    array = np.ascontiguousarray(values, np.int64)
    if len(array) != n:
        raise UsageError(f"{len(array)} for {n} rows: positions, parents, groups, numbers and types are one a row")
    keep.append(array)
    return address(array)


def _check_head(wanted: Outputs, count: int) -> None:
    """Raise UsageError unless the head can run on the requested rows."""
    if not 0 <= wanted.logits_from < max(1, count):
        raise UsageError(f"logits_from {wanted.logits_from}: the call computes {count} rows")
    if not wanted.temperature > 0:
        raise UsageError(f"temperature {wanted.temperature} of a log-sum: must be above 0")
