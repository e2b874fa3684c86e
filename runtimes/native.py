"""The stack of blocks on the CPU kernels of `kernels/cpu`: one call of C++ for any blocks and rows of any sequences.

The weights are used where they lie, memory-mapped. A row's outputs are the same bytes whatever other rows share its
call. Keys and values lie in pages that forks share; int8 and int4 caches carry a scale for each token and head, made
as they are written: no calibration, and another layout than ONNX Runtime's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle import Bundle
from edgedec.errors import ContextFull, RuntimeUnavailable, UsageError
from edgedec.kernels import cpu
from edgedec.kernels.cpu import loader, structs
from edgedec.runtime import (
    Call,
    CallResult,
    Capabilities,
    DeviceName,
    Outputs,
    RuntimeFacts,
    RuntimeOptions,
    available_cores,
    lacking_kinds,
)
from edgedec.runtimes import _native_drafting
from edgedec.runtimes._native_cache import NativeCache, address, raise_refusal
from edgedec.runtimes._native_model import NativeAdapter, NativeModel
from edgedec.runtimes._native_outputs import attention_arrays, query_arrays
from edgedec.runtimes._native_readout import NativeReadouts
from edgedec.runtimes._native_sampler import NO_DRAW, NativeSampler, draw_fields, drawn_by, give_drawn
from edgedec.runtimes._native_views import NativeViews
from edgedec.spec import KV_FORMATS

__all__ = ["FACTS", "KINDS", "NativeCache", "NativeRuntime", "open", "unavailable_reason"]

KINDS = ("attention", "mlp", "moe", "ssm")
FACTS = RuntimeFacts(KINDS)
# Below this many bytes of weights a thread, meeting the others costs more than it saves.
_BYTES_PER_THREAD = 2 << 20
_MOST_BLOCK_LISTS = 256
# More of the best tokens, or of a smaller vocabulary, cost the head more than all logits cost the reader.
_BEST, _WIDE = 256, 1 << 14


def unavailable_reason(bundle: Bundle, device: DeviceName) -> str | None:
    """None if this runtime can open the bundle here, else the reason in one line."""
    return loader.why_not() or lacking_kinds(bundle, KINDS)


def open(bundle: Bundle, options: RuntimeOptions) -> NativeRuntime:  # noqa: A001
    kv = options.kv or bundle.manifest.kv_formats[0]
    if kv not in cpu.FORMATS:
        raise UsageError(f"no KV format {kv!r}; there are: {', '.join(cpu.FORMATS)}")
    threads = options.threads or min(available_cores(), max(1, len(bundle.weights) // _BYTES_PER_THREAD))
    return NativeRuntime(bundle, kv, threads)


class NativeRuntime:
    """A runtime over a bundle's weights file. `isa`: an instruction set to use instead of the best one."""

    name = "native"

    def __init__(self, bundle: Bundle, kv: str, threads: int, isa: str | None = None) -> None:
        self.spec, self.kv, self.threads = bundle.spec, kv, threads
        self._model, self._isa = NativeModel(bundle), isa or os.environ.get("EDGEDEC_ISA") or None
        self._pool = cpu.CachePool(self._model.struct, kv)
        self._engine = self._start()
        self._pid = os.getpid()
        self._block_lists: dict[tuple[int, ...], NDArray[np.int32]] = {}
        self._adapters: WeakKeyDictionary[Any, NativeAdapter] = WeakKeyDictionary()
        self._readouts, self._views = NativeReadouts(bundle), NativeViews(self.spec)
        self._all = tuple(range(self.spec.n_blocks))
        self.capabilities = Capabilities(
            kinds=KINDS,
            kv_formats=KV_FORMATS,
            batch_invariant=True,
            merge=True,
            drop_by_head=True,
            offload=sys.platform != "win32",
            attach=True,
            views=True,
            queries=True,
            best_k=_BEST if self.spec.vocab_size >= _WIDE else 0,
            temperatures=True,
            page_slots=cpu.page_slots(),
            masks=False,
            threads=threads,
            isa=self._engine.isa,
            sampler=NativeSampler,
            draws=True,
            drafting=_native_drafting.PARTS,
        )

        self._largest = self.capabilities.largest_call

    @property
    def isa(self) -> str:
        return self._engine.isa

    @property
    def pages(self) -> int:
        """Pages that all caches of this runtime hold."""
        return self._pool.pages

    def _start(self) -> cpu.Engine:
        try:
            return cpu.Engine(self._model.struct, self.threads, self._isa, self._model)
        except OSError as error:
            raise RuntimeUnavailable(f"engine native: {error}") from None

    def load(self) -> None:
        """Nothing to open: the weights are mapped."""

    def release(self) -> None:
        """Give the working memory back."""
        self._engine = self._start()

    def new_cache(self, capacity: int) -> NativeCache:
        if capacity < 1:
            raise UsageError(f"capacity {capacity}: a cache needs room for at least one token")
        return NativeCache(self.spec, self._pool.new_cache(capacity), capacity, self.kv)

    def forward(self, calls: Sequence[Call]) -> list[CallResult]:
        keep: list[Any] = []  # what the packed calls point to
        logits = self._logits(calls) if len(calls) > 1 else None
        drawn, drawn_at = drawn_by(calls)
        packed, results, rows = [], [], 0
        for i, call in enumerate(calls):
            rows += self._counted(call)
            data, result = self._pack(call, logits[i] if logits else None, drawn_at + 4 * i, keep)
            packed.append(data)
            results.append(result)
        if rows > self._largest:
            raise UsageError(f"{rows} rows in one forward: this runtime takes {self._largest} (largest_call)")
        if os.getpid() != self._pid:
            # A forked process has the memory and none of the threads.
            self._engine, self._pid = self._start(), os.getpid()
        code = self._engine.run(packed[0] if len(packed) == 1 else b"".join(packed), len(packed))
        if code == cpu.FULL:
            _raise_full(calls)
        if code:
            raise_refusal(code)
        if drawn is not None:
            give_drawn(calls, results, drawn)
        return results

    def _counted(self, call: Call) -> int:
        """How many rows a call computes; UsageError if none."""
        if call.rows.count < 1:
            raise UsageError(f"rows from {call.rows.first} on of {len(call.rows)}: a call computes at least one row")
        return call.rows.count

    def _logits(self, calls: Sequence[Call]) -> list[NDArray[np.float32] | None] | None:
        """Arrays of several calls' logits, side by side, so that the head writes them in one go; None: make them one by
        one."""
        wanted = [max(0, call.rows.count - call.outputs.logits_from) if call.outputs.logits else 0 for call in calls]
        if sum(n > 0 for n in wanted) < 2:
            return None
        whole, ends = np.empty((sum(wanted), self.spec.vocab_size), np.float32), np.cumsum(wanted).tolist()
        return [whole[end - n : end] if n else None for n, end in zip(wanted, ends, strict=True)]

    def _pack(
        self, call: Call, logits: NDArray[np.float32] | None, drawn_at: int, keep: list[Any]
    ) -> tuple[bytes, CallResult]:
        """A call as the library reads it, and the result whose arrays it will fill."""
        rows, cache, blocks, hidden, wanted, adapter, views = call
        if not isinstance(cache, NativeCache):
            raise UsageError("a cache of another engine")
        if cache.spec is not self.spec and cache.spec != self.spec:
            raise UsageError("a cache of another model")
        first, count, n = rows.first, rows.count, len(rows)
        if wanted.head:
            _check_head(wanted, count)
        head_rows = max(0, count - wanted.logits_from)
        tokens = np.ascontiguousarray(rows.tokens, np.int64)
        keep += (tokens, cache)
        positions = self._ints(rows.positions, n, keep)
        parents = groups = numbers = given = chosen = 0
        if not rows.is_chain:
            parents = self._ints(rows.parents, n, keep)
            groups = 0 if rows.groups is None else self._ints(rows.groups, n, keep)
        if rows.numbers is not None:
            numbers = self._ints(rows.numbers, n, keep)
        entering = hidden if hidden is not None else rows.embeddings
        if entering is not None:
            given = self._entering(entering, count, keep)
        beside = given if rows.embeddings is not None else 0
        if hidden is not None and rows.embeddings is not None:
            beside = self._entering(rows.embeddings, count, keep)
        n_blocks = -1
        if blocks is not None:
            array = self._block_list(blocks)
            n_blocks, chosen = len(array), address(array)
        ids = scores = logsum = None
        logits_at = ids_at = scores_at = logsum_at = top = 0
        if wanted.logits:
            if logits is None:
                logits = np.empty((head_rows, self.spec.vocab_size), np.float32)
            logits_at = address(logits)
        if wanted.top:
            top = min(wanted.top, self.spec.vocab_size if wanted.readout is None else len(wanted.readout))
            ids, scores = np.empty((head_rows, top), np.int32), np.empty((head_rows, top), np.float32)
            ids_at, scores_at = address(ids), address(scores)
        if wanted.logsum:
            logsum = np.empty(head_rows, np.float64)
            logsum_at = address(logsum)
        states, states_at, names_at = self._states(wanted.hidden, count, keep) if wanted.hidden else ({}, 0, 0)
        paid, paid_at = attention_arrays(self.spec, call, cache, keep) if wanted.attention else ({}, 0)
        queries, queries_at = query_arrays(self.spec, call, keep) if wanted.queries else ({}, 0)
        data = structs.pack_sequence(
            count,
            first,
            n_blocks,
            wanted.logits_from if wanted.head and head_rows else -1,
            top,
            len(wanted.hidden),
            wanted.temperature,
            cache.handle.address,
            chosen,
            address(tokens),
            given,
            positions,
            parents,
            groups,
            numbers,
            logits_at,
            ids_at,
            scores_at,
            logsum_at,
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
        return data, CallResult(logits, ids, scores, logsum, states, paid, queries)

    def _ints(self, values: NDArray[np.int64], n: int, keep: list[Any]) -> int:
        array = np.ascontiguousarray(values, np.int64)
        if len(array) != n:
            raise UsageError(f"{len(array)} positions, parents, groups or numbers for {n} rows: give one for each row")
        keep.append(array)
        return address(array)

    def _entering(self, hidden: NDArray[np.float32], count: int, keep: list[Any]) -> int:
        array = np.ascontiguousarray(hidden, np.float32)
        if array.shape != (count, self.spec.hidden_size):
            raise UsageError(f"hidden {list(array.shape)}: expected [{count}, {self.spec.hidden_size}]")
        keep.append(array)
        return address(array)

    def _block_list(self, blocks: Sequence[int]) -> NDArray[np.int32]:
        """The same few lists are run again and again."""
        key = tuple(blocks)
        if key not in self._block_lists:
            if len(self._block_lists) >= _MOST_BLOCK_LISTS:
                self._block_lists = {}
            self._block_lists[key] = np.array(key, np.int32)
        return self._block_lists[key]

    def _states(
        self, blocks: tuple[int, ...], count: int, keep: list[Any]
    ) -> tuple[dict[int, NDArray[np.float32]], int, int]:
        """Arrays [count, hidden_size] by block, and the addresses of their list and of the block numbers."""
        names = np.array(blocks, np.int32)
        states = {block: np.empty((count, self.spec.hidden_size), np.float32) for block in blocks}
        places = np.array([address(states[block]) for block in blocks], np.uintp)
        keep += (names, places)
        return states, address(places), address(names)

    def _adapter(self, adapter: Any, keep: list[Any]) -> int:
        found = self._adapters.get(adapter)
        if found is None:
            found = self._adapters[adapter] = NativeAdapter(self.spec, adapter)
        keep.append(found)
        return found.address


def _check_head(wanted: Outputs, count: int) -> None:
    """UsageError unless the head can run on the rows that are wanted of it."""
    if not 0 <= wanted.logits_from < max(1, count):
        raise UsageError(f"logits_from {wanted.logits_from}: the call computes {count} rows")
    if not wanted.temperature > 0:
        raise UsageError(f"temperature {wanted.temperature} of a log-sum: must be above 0")


def _raise_full(calls: Sequence[Call]) -> NoReturn:
    """The error for the call whose rows do not fit its cache."""
    for call in calls:
        need = call.cache.length + int(call.rows.row_numbers()[-1]) + 1
        if need > call.cache.capacity:
            raise ContextFull(f"{need} rows do not fit a cache of {call.cache.capacity}")
    raise_refusal(cpu.FULL)
