"""The stack of layers on ONNX Runtime's CPU provider.

Plain decoding runs the whole model as one session. When a tree or hidden states are wanted, it becomes
two, stack and head; when a slice cuts the stack, a session a layer; and a layer that a slice takes in
part becomes two, attention and MLP. A session is replaced, never doubled, so no weight is prepared
twice. Buffers and bindings for a call of few rows are kept in a `_Plan`, because decoding repeats one
call thousands of times.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from edgedec.bundle.folder import Bundle
from edgedec.cache.host import Cache
from edgedec.errors import BundleCorrupt
from edgedec.runtime.core import Begun, Call, Output, RuntimeOptions, Want, available_cores, best, choose_kv
from edgedec.runtime.rows import Rows
from edgedec.spec import ModelSpec

Array = NDArray[np.float32]
MASKED = np.float32(-1e9)
_PLANS = 8
_PLAN_ROWS = 64
# Below this, handing a matrix product to another thread costs more than it saves.
_WEIGHTS_PER_THREAD = 16 << 20


def open(bundle: Bundle, options: RuntimeOptions) -> OnnxRuntime:  # noqa: A001
    threads = options.threads or default_threads(len(bundle.weights))
    return OnnxRuntime(bundle, choose_kv(bundle, options.kv), threads)


def default_threads(weight_bytes: int) -> int:
    """All CPUs this process may use, but no more than the weights give work for."""
    return min(available_cores(), max(1, weight_bytes // _WEIGHTS_PER_THREAD))


def session_options(threads: int, alone: bool = False) -> ort.SessionOptions:
    """Every session has a pool of its own: ONNX Runtime's shared pool is fixed once for a process and
    refuses other people's sessions. Unless a session is `alone`, its workers wait awake for one next
    product and no longer, so that pools do not keep each other off the cores."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    if not alone:
        options.add_session_config_entry("session.intra_op.spin_duration_us", "100")
    # An arena would keep the largest activations that were ever needed.
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    return options


class OnnxRuntime:
    """A runtime over a bundle's graphs."""

    name = "ort"
    invariant = False

    def __init__(self, bundle: Bundle, kv: str, threads: int) -> None:
        self.spec, self.kv, self.threads = bundle.spec, kv, threads
        self._bundle = bundle
        self._sessions: dict[str, ort.InferenceSession] = {}
        # The whole-model graph is made for the first cache format.
        self._fused = kv == bundle.manifest.kv_formats[0]
        self._whole = True
        self._split: set[int] = set()
        self._parts: dict[tuple[int, ...], list[_Part]] = {}
        self._plans: OrderedDict[tuple[Any, ...], _Plan] = OrderedDict()
        self._lock = threading.Lock()

    def call_all(self, calls: Sequence[Call]) -> None:
        """Nothing quicker than one after the other."""

    def new_cache(self, capacity: int) -> Cache:
        return Cache(self.spec, capacity, self.kv)

    def load(self) -> None:
        """Open what the whole stack needs now rather than at first use."""
        if self._fused:
            self._session(self._bundle.manifest.graphs.model)
            return
        # The head first: it is the largest matrix, and opening needs room for two of it.
        self._session(self._bundle.manifest.graphs.head)
        for part in self._slice(self.spec.blocks()):
            self._session(part.file)

    def call(self, rows: Rows, cache: Cache, skip: int, want: Want, begun: Begun | None = None) -> Output | None:
        if want.hidden or begun is not None:
            return None
        logits = self._logits(rows, cache, skip)
        if logits is None:
            return None
        ids, scores = best(logits, want.top) if want.top else (None, None)
        return Output(logits if want.logits else None, ids, scores)

    def _logits(self, rows: Rows, cache: Cache, skip: int) -> Array | None:
        """By the graph of the whole model, of the last row of a chain; None if that cannot be."""
        with self._lock:
            last_of_chain = skip == rows.count - 1 and rows.is_chain and not rows.first
            if not self._fused or not last_of_chain or rows.positions[0] != cache.length:
                return None
            cache.reserve(len(rows))
            name = self._bundle.manifest.graphs.model
            session = self._session(name)
            try:
                return self._plan(rows.count, cache).whole(name, session, rows, cache.length, self.spec.vocab_size)
            except Exception as error:
                raise self._broken(name, "run", error) from None

    def _unfuse(self) -> None:
        """From now on hidden states are wanted: stack and head take the place of the whole model."""
        if self._fused:
            self._fused = False
            self._sessions.pop(self._bundle.manifest.graphs.model, None)
            self._plans.clear()

    def release(self) -> None:
        """Close every session; each opens again when it is needed."""
        with self._lock:
            self._sessions.clear()
            self._plans.clear()

    def embed(self, tokens: NDArray[np.int64]) -> Array:
        return self._bundle.gather("embed", tokens) * np.float32(self.spec.embed_scale)

    def head(self, hidden: Array) -> Array:
        with self._lock:
            self._unfuse()
        name = self._bundle.manifest.graphs.head
        session = self._session(name)
        try:
            out: Array = session.run(None, {"hidden": hidden[None]})[0][0]
        except Exception as error:
            raise self._broken(name, "run", error) from None
        return out

    def run(self, hidden: Array, rows: Rows, cache: Cache, blocks: Sequence[int]) -> Array:
        with self._lock:
            self._unfuse()
            cache.reserve(len(rows))
            if cache.length or rows.first or np.array_equal(rows.positions, np.arange(len(rows))):
                return self._run(hidden, rows, cache, tuple(blocks))
            # Into an empty cache GroupQueryAttention numbers the rows itself, whatever position_ids say:
            # a tree sends its first row ahead.
            root = Rows(rows.tokens[:1], rows.positions[:1], rows.parents[:1])
            parts = [(hidden[:1], root), (hidden[1:], replace(rows, first=1))]
            return np.concatenate([self._run(x, part, cache, tuple(blocks)) for x, part in parts if len(x)])

    def _run(self, hidden: Array, rows: Rows, cache: Cache, blocks: tuple[int, ...]) -> Array:
        plan = self._plan(rows.count, cache)
        plan.start(hidden, rows, cache.length)
        for part in self._slice(blocks):
            session = self._session(part.file)
            try:
                plan.step(part, session)
            except Exception as error:
                raise self._broken(part.file, "run", error) from None
        return plan.result()

    def _slice(self, blocks: tuple[int, ...]) -> list[_Part]:
        """The graphs that make up a slice. Blocks 0 1 2 3 are two layers; 0 3 is attention 0 and MLP 1."""
        if blocks not in self._parts:
            self._cut(blocks)
            self._parts[blocks] = self._cover(blocks)
        return self._parts[blocks]

    def _cover(self, blocks: tuple[int, ...]) -> list[_Part]:
        graphs, parts, at = self._bundle.manifest.graphs, [], 0
        if self._whole:
            return [_Part(graphs.stack[self.kv], tuple(range(self.spec.n_layers)))]
        while at < len(blocks):
            layer, is_mlp = divmod(blocks[at], 2)
            if layer not in self._split:
                parts.append(_Part(graphs.layers[self.kv][layer], (layer,)))
                at += 2
            else:
                parts.append(
                    _Part(graphs.mlp[layer], ()) if is_mlp else _Part(graphs.attention[self.kv][layer], (layer,))
                )
                at += 1
        return parts

    def _cut(self, blocks: tuple[int, ...]) -> None:
        """Replace the sessions that are larger than this slice allows."""
        graphs = self._bundle.manifest.graphs
        split = _halved(blocks) - self._split
        closed = [graphs.layers[self.kv][layer] for layer in split]
        if self._whole and blocks != self.spec.blocks():
            self._whole = False
            closed.append(graphs.stack[self.kv])
        self._split |= split
        if closed:
            self._parts.clear()
            for name in closed:
                self._sessions.pop(name, None)
            self._plans.clear()

    def _session(self, name: str) -> ort.InferenceSession:
        session = self._sessions.get(name)
        if session is None:
            path = self._bundle.file(name)
            options = session_options(self.threads, alone=name == self._bundle.manifest.graphs.model)
            try:
                session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            except Exception as error:
                raise self._broken(name, "open", error) from None
            self._sessions[name] = session
        return session

    def _broken(self, name: str, verb: str, error: Exception) -> Exception:
        """What to raise when ONNX Runtime cannot open or run a graph: out of memory, or the graph is at fault."""
        if isinstance(error, MemoryError):
            return error
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        return BundleCorrupt(f"{self._bundle.path / name}: ONNX Runtime cannot {verb} it: {reason}")

    def _plan(self, count: int, cache: Cache) -> _Plan:
        key = (count, cache.data.ctypes.data, cache.data.shape)
        plan = self._plans.pop(key, None) or _Plan(self.spec, count, cache)
        if count <= _PLAN_ROWS:
            self._plans[key] = plan
            if len(self._plans) > _PLANS:
                self._plans.popitem(last=False)
        return plan


def _halved(blocks: tuple[int, ...]) -> set[int]:
    """The layers of which a slice takes one block without the other: of 0 1 2 1 they are 0 and 1."""
    found, at = set(), 0
    while at < len(blocks):
        pair = blocks[at] % 2 == 0 and blocks[at + 1 : at + 2] == (blocks[at] + 1,)
        if not pair:
            found.add(blocks[at] // 2)
        at += 2 if pair else 1
    return found


@dataclass(frozen=True)
class _Part:
    """A graph file and the layers whose cache it uses."""

    file: str
    layers: tuple[int, ...]


class _Plan:
    """Buffers for a call of `count` rows on one cache, and each session's bindings to them.

    Hidden states go back and forth between two buffers; a binding is made for either direction.
    Caches are bound by address, so that a plan never keeps one alive; the key of a plan holds that address.
    """

    def __init__(self, spec: ModelSpec, count: int, cache: Cache) -> None:
        self._windows = spec.windows
        self._hidden = [np.empty((1, count, spec.hidden_size), np.float32) for _ in range(2)]
        self._call: dict[str, NDArray[Any]] = {
            "seqlens_k": np.zeros(1, np.int32),
            "total_sequence_length": np.zeros((), np.int32),
            "position_ids": np.zeros((1, count), np.int64),
        }
        self._shape = [1, *cache.data.shape[2:]]
        self._dtype = cache.data.dtype
        self._past = [[cache.data[i, j].ctypes.data for j in range(2)] for i in range(len(cache.data))]
        self._bindings: dict[tuple[str, int], tuple[Any, list[str]]] = {}
        self._biases: dict[str, Any] = {}
        self._side = 0

    def start(self, hidden: Array, rows: Rows, length: int) -> None:
        total = length + len(rows)
        self._side = 0
        self._hidden[0][0] = hidden
        self._call["seqlens_k"][0] = total - 1
        self._call["total_sequence_length"][...] = total
        self._call["position_ids"][0] = rows.positions[rows.first :]
        for i, window in enumerate(self._windows):
            bias = np.where(rows.mask(length, window), np.float32(0), MASKED)[None, None]
            self._biases[f"attention_bias.{i}"] = ort.OrtValue.ortvalue_from_numpy(bias)

    def step(self, part: _Part, session: ort.InferenceSession) -> None:
        key = (part.file, self._side)
        if key not in self._bindings:
            self._bindings[key] = self._bind(part, session)
        binding, biases = self._bindings[key]
        for name in biases:
            binding.bind_ortvalue_input(name, self._biases[name])
        session.run_with_iobinding(binding)
        self._side ^= 1

    def result(self) -> Array:
        return self._hidden[self._side][0].copy()

    def whole(self, name: str, session: ort.InferenceSession, rows: Rows, length: int, vocab: int) -> Array:
        """The whole-model graph on a chain: logits [1, vocab] of its last row."""
        if (name, 0) not in self._bindings:
            self._ids, self._logits = np.zeros((1, len(rows)), np.int64), np.empty((1, 1, vocab), np.float32)
            binding = session.io_binding()
            binding.bind_input("input_ids", "cpu", 0, np.int64, [1, len(rows)], self._ids.ctypes.data)
            binding.bind_output("logits", "cpu", 0, np.float32, [1, 1, vocab], self._logits.ctypes.data)
            self._bind_cache(binding, range(len(self._past)))
            self._bindings[name, 0] = binding, []
        binding, _ = self._bindings[name, 0]
        self._ids[0] = rows.tokens
        mask = np.ones((1, length + len(rows)), np.int64)
        binding.bind_input("attention_mask", "cpu", 0, np.int64, list(mask.shape), mask.ctypes.data)
        session.run_with_iobinding(binding)
        return self._logits[0].copy()

    def _bind(self, part: _Part, session: ort.InferenceSession) -> tuple[Any, list[str]]:
        """A binding of all that stays where it is, and the names of the biases, which do not."""
        binding = session.io_binding()
        wanted = [value.name for value in session.get_inputs()]
        inputs: dict[str, NDArray[Any]] = {"hidden": self._hidden[self._side], **self._call}
        for name, a in inputs.items():
            if name in wanted:
                binding.bind_input(name, "cpu", 0, a.dtype, list(a.shape), a.ctypes.data)
        self._bind_cache(binding, part.layers)
        target = self._hidden[self._side ^ 1]
        binding.bind_output("hidden_out", "cpu", 0, target.dtype, list(target.shape), target.ctypes.data)
        return binding, [name for name in wanted if name in self._biases]

    def _bind_cache(self, binding: Any, layers: Iterable[int]) -> None:
        for layer in layers:
            for kind, address in zip(("key", "value"), self._past[layer], strict=True):
                cache = ("cpu", 0, self._dtype, self._shape, address)
                binding.bind_input(f"past_key_values.{layer}.{kind}", *cache)
                binding.bind_output(f"present.{layer}.{kind}", *cache)
