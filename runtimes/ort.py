"""The stack of layers on ONNX Runtime's CPU provider.

A layer is one session until a slice cuts inside it; then it becomes two, an attention and an MLP
session, for good (never both, so that no weight is prepared twice). Buffers and bindings for a
call of few rows are kept in a `_Plan`, because a decoding step repeats them thousands of times.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from edgedec.bundle import Bundle
from edgedec.cache import Cache
from edgedec.errors import BundleCorrupt, RuntimeUnavailable
from edgedec.rows import Rows
from edgedec.runtime import RuntimeOptions

Array = NDArray[np.float32]
MASKED = np.float32(-1e9)
_PLANS = 8
_PLAN_ROWS = 64
_pool_lock = threading.Lock()
_pool_size: int | None = None


def open(bundle: Bundle, options: RuntimeOptions) -> OnnxRuntime:  # noqa: A001
    kv = options.kv or bundle.manifest.kv_formats[0]
    if kv not in bundle.manifest.kv_formats:
        raise RuntimeUnavailable(
            f"{bundle.path}: exported for KV {', '.join(bundle.manifest.kv_formats)}, not {kv}; export again with --kv {kv}"
        )
    return OnnxRuntime(bundle, kv, options.threads or cores())


def cores() -> int:
    """The CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def session_options(threads: int) -> ort.SessionOptions:
    """One pool for all sessions of a process. ONNX Runtime fixes its size once: a runtime that asks
    for another size gets pools of its own, which do not spin."""
    global _pool_size
    options = ort.SessionOptions()
    options.log_severity_level = 3
    # Arenas would keep every session's largest activations; one a layer adds up.
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    with _pool_lock:
        if _pool_size is None and threads > 1:
            try:
                ort.set_global_thread_pool_sizes(threads, 1)
                _pool_size = threads
            except Exception:  # the embedding program made ONNX Runtime's environment already
                _pool_size = 0
    if threads == _pool_size:
        options.use_per_session_threads = False
    else:
        options.intra_op_num_threads = threads
        if threads > 1:
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


class OnnxRuntime:
    """A runtime over a bundle's graphs."""

    name = "ort"

    def __init__(self, bundle: Bundle, kv: str, threads: int) -> None:
        self.spec, self.kv, self.threads = bundle.spec, kv, threads
        self._bundle = bundle
        self._options = session_options(threads)
        self._sessions: dict[str, ort.InferenceSession] = {}
        self._split: set[int] = set()
        self._plans: OrderedDict[tuple[Any, ...], _Plan] = OrderedDict()
        self._lock = threading.Lock()

    def new_cache(self, capacity: int) -> Cache:
        return Cache(self.spec, capacity, self.kv)

    def load(self) -> None:
        """Open every session of the whole stack now rather than at first use."""
        graphs = self._bundle.manifest.graphs
        for name in (graphs.embed, *graphs.layers[self.kv], graphs.head):
            self._session(name)

    def release(self) -> None:
        """Close every session; each opens again when it is needed."""
        with self._lock:
            self._sessions.clear()
            self._plans.clear()

    def embed(self, tokens: NDArray[np.int64]) -> Array:
        ids = np.ascontiguousarray(tokens, np.int64)[None]
        out: Array = self._session(self._bundle.manifest.graphs.embed).run(None, {"input_ids": ids})[0][0]
        return out

    def head(self, hidden: Array) -> Array:
        out: Array = self._session(self._bundle.manifest.graphs.head).run(None, {"hidden": hidden[None]})[0][0]
        return out

    def run(self, hidden: Array, rows: Rows, cache: Cache, blocks: Sequence[int]) -> Array:
        with self._lock:
            cache.reserve(len(rows))
            plan = self._plan(rows.count, cache)
            plan.start(hidden, rows, cache.length)
            for name, layer in self._parts(blocks):
                plan.step(name, self._session(name), layer, self.spec.layers[layer].window)
            return plan.result()

    def _parts(self, blocks: Sequence[int]) -> list[tuple[str, int]]:
        """The graph files that make up a slice, each with its layer.

        Blocks 0 1 2 3 are two layer graphs; 0 3 is attention 0 and MLP 1.
        """
        graphs, parts, at = self._bundle.manifest.graphs, [], 0
        self._cut(blocks)
        while at < len(blocks):
            layer, is_mlp = divmod(blocks[at], 2)
            if layer not in self._split:
                parts.append((graphs.layers[self.kv][layer], layer))
                at += 2
            else:
                parts.append((graphs.mlp[layer] if is_mlp else graphs.attention[self.kv][layer], layer))
                at += 1
        return parts

    def _cut(self, blocks: Sequence[int]) -> None:
        """Split the layers that this slice takes in part."""
        whole = {b // 2 for b, after in zip(blocks, blocks[1:]) if b % 2 == 0 and after == b + 1}
        for layer in {b // 2 for b in blocks} - whole - self._split:
            self._split.add(layer)
            name = self._bundle.manifest.graphs.layers[self.kv][layer]
            self._sessions.pop(name, None)
            for plan in self._plans.values():
                plan.forget(name)

    def _session(self, name: str) -> ort.InferenceSession:
        session = self._sessions.get(name)
        if session is None:
            path = self._bundle.file(name)
            try:
                session = ort.InferenceSession(str(path), self._options, providers=["CPUExecutionProvider"])
            except Exception as error:
                reason = str(error).splitlines()[0]
                raise BundleCorrupt(f"{path}: ONNX Runtime cannot open it: {reason}") from None
            self._sessions[name] = session
        return session

    def _plan(self, count: int, cache: Cache) -> _Plan:
        key = (count, cache.data.ctypes.data, cache.data.shape)
        plan = self._plans.pop(key, None) or _Plan(self.spec.hidden_size, count, cache)
        if count <= _PLAN_ROWS:
            self._plans[key] = plan
            if len(self._plans) > _PLANS:
                self._plans.popitem(last=False)
        return plan


class _Plan:
    """Buffers for a call of `count` rows on one cache, and each session's bindings to them.

    Hidden states go back and forth between two buffers; a binding is made for either direction.
    Caches are bound by address, so that a plan never keeps one alive; the key of a plan holds that address.
    """

    def __init__(self, hidden_size: int, count: int, cache: Cache) -> None:
        self._hidden = [np.empty((1, count, hidden_size), np.float32) for _ in range(2)]
        self._seqlens = np.zeros(1, np.int32)
        self._total = np.zeros((), np.int32)
        self._positions = np.zeros((1, count), np.int64)
        self._shape = (1, *cache.data.shape[2:])
        self._dtype = cache.data.dtype
        self._past = [[cache.data[i, j].ctypes.data for j in range(2)] for i in range(len(cache.data))]
        self._bindings: dict[tuple[str, int], Any] = {}
        self._bias: dict[int | None, Any] = {}
        self._side = 0

    def start(self, hidden: Array, rows: Rows, length: int) -> None:
        total = length + len(rows)
        self._hidden[0][0] = hidden
        self._side = 0
        self._seqlens[0], self._total[...] = total - 1, total
        self._positions[0] = rows.positions[rows.first :]
        self._rows, self._length = rows, length
        self._bias.clear()

    def step(self, name: str, session: ort.InferenceSession, layer: int, window: int | None) -> None:
        key = (name, self._side)
        binding = self._bindings.get(key)
        if binding is None:
            binding = self._bindings[key] = self._bind(session, layer)
        if not name.startswith("mlp"):
            binding.bind_ortvalue_input("attention_bias", self._attention_bias(window))
        session.run_with_iobinding(binding)
        self._side ^= 1

    def result(self) -> Array:
        return self._hidden[self._side][0].copy()

    def forget(self, name: str) -> None:
        """Drop the bindings of a session that is no more."""
        for side in range(2):
            self._bindings.pop((name, side), None)

    def _attention_bias(self, window: int | None) -> Any:
        """0 where a row may look, MASKED elsewhere: [1, 1, count, total]."""
        if window not in self._bias:
            sees = self._rows.mask(self._length, window)
            bias = np.where(sees, np.float32(0), MASKED)[None, None]
            self._bias[window] = ort.OrtValue.ortvalue_from_numpy(bias)
        return self._bias[window]

    def _bind(self, session: ort.InferenceSession, layer: int) -> Any:
        binding = session.io_binding()
        source, target = self._hidden[self._side], self._hidden[self._side ^ 1]
        arrays = {
            "hidden": source,
            "seqlens_k": self._seqlens,
            "total_sequence_length": self._total,
            "position_ids": self._positions,
        }
        wanted = {value.name for value in session.get_inputs()}
        for name in wanted & arrays.keys():
            a = arrays[name]
            binding.bind_input(name, "cpu", 0, a.dtype, list(a.shape), a.ctypes.data)
        for part, address in zip(("key", "value"), self._past[layer], strict=True):
            if f"past.{part}" in wanted:
                binding.bind_input(f"past.{part}", "cpu", 0, self._dtype, list(self._shape), address)
                binding.bind_output(f"present.{part}", "cpu", 0, self._dtype, list(self._shape), address)
        binding.bind_output("hidden_out", "cpu", 0, target.dtype, list(target.shape), target.ctypes.data)
        return binding
