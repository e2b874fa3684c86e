"""The inputs of a graph call: masks and lengths by block (`Step`), buffers and bindings (`Plan`).

With an empty cache GroupQueryAttention ignores the given positions and numbers the rows from 0. Rows at other positions
(a tree) are therefore written one slot up, after a slot hidden by the mask, and moved down afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from edgedec.cache.host import HostCache
from edgedec.runtime import Rows
from edgedec.runtime.onnx_memory import returning
from edgedec.runtimes.ort.recurrent import RecurrentTree, tree_of
from edgedec.spec import ModelSpec, Ssm

Array = NDArray[np.float32]
MASKED = np.float32(-1e9)
APART = "key_distance"
# The tensor `a` of a state-space block [n_heads].
Decays = Callable[[int], Array]


class Step:
    """One call on some blocks. spans: the slots of its computed rows by attention block; shared: all hold the same
    slots. embedding [count, hidden_size]: of the rows' tokens, if a block reads it; beside: what a block that is run by
    itself reads, if it stands beside others."""

    def __init__(
        self,
        spec: ModelSpec,
        blocks: list[int],
        rows: Rows,
        cache: HostCache,
        decays: Decays,
        embedding: Array | None = None,
    ) -> None:
        self.embedding, self.beside = embedding, embedding
        self.spec, self.rows, self.cache, self._decays = spec, rows, cache, decays
        attention = [b for b in blocks if b in spec.attention]
        self._apart = not np.array_equal(rows.positions, np.arange(len(rows)) + rows.positions[:1])
        self.spans = cache.write(blocks, rows, spare=int(self._apart))
        self.shared = cache.same_slots(attention)
        self._biases: dict[tuple[int, int], Any] = {}

    def shift(self, b: int) -> int:
        """1 if the rows are written one slot up."""
        return int(self._apart and self.spans[b][0] == 0)

    def total(self, b: int) -> int:
        """Slots of attention block b that its operator reads."""
        return self.spans[b][1] + self.shift(b)

    def bias(self, b: int) -> Any:
        """The mask of block b as a value to bind: float32 [1, 1, rows, slots], 0 where a row sees a slot."""
        window = self.spec.windows.index((self.spec.attention[b].window, self.spec.attention[b].sinks))
        key = (-1 if self.shared else b, window)
        if key not in self._biases:
            wide, sinks = self.spec.windows[window]
            ahead = None if self.spec.causal else wide
            sees = self.rows.mask(self.cache.positions(b), wide, sinks, ahead)
            bias = np.where(sees, np.float32(0), MASKED)
            if self.shift(b):
                bias = np.concatenate([np.full((len(bias), 1), MASKED), bias], axis=1)
            self._biases[key] = ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(bias[None, None]))
        return self._biases[key]

    def apart(self, b: int) -> Any:
        """The distance of each slot from each row, negative, to bind: float32 [1, 1, rows, slots]."""
        key = (-1 if self.shared else b, -1)
        if key not in self._biases:
            keys = np.concatenate([self.cache.positions(b), self.rows.positions])
            apart = -np.abs(keys[None, :] - self.rows.positions[self.rows.first :, None]).astype(np.float32)
            if self.shift(b):
                apart = np.concatenate([np.zeros((len(apart), 1), np.float32), apart], axis=1)
            self._biases[key] = ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(apart[None, None]))
        return self._biases[key]

    def tree(self, b: int) -> RecurrentTree:
        """The pending tree of recurrent block b, with the rows of this call."""
        block = self.spec.recurrent[b]
        decays = self._decays(b) if isinstance(block, Ssm) else np.zeros(0, np.float32)
        return tree_of(block, decays, self.rows, self.cache.state(b))

    def settle(self, blocks: Iterable[int]) -> None:
        """Move rows that were written one slot up to their own slots."""
        for b in blocks:
            if b in self.spans and self.shift(b):
                stop, data = self.spans[b][1], self.cache.data(b)
                data[:, :, :stop] = data[:, :, 1 : stop + 1].copy()


class Plan:
    """Buffers for a call of `count` rows on one cache, and each session's bindings to them.

    Caches are bound by address, so a plan does not keep them alive; the key of a plan has the number of their storage.
    """

    def __init__(self, spec: ModelSpec, count: int, cache: HostCache) -> None:
        self._spec, self._count = spec, count
        self._call: dict[str, NDArray[Any]] = {
            "hidden": np.empty((1, count, spec.hidden_size), np.float32),
            "seqlens_k": np.zeros(1, np.int32),
            "total_sequence_length": np.zeros((), np.int32),
            "position_ids": np.zeros((1, count), np.int64),
        }
        if spec.paired:
            self._call["embedding"] = np.empty((1, count, spec.hidden_size), np.float32)
        if any(block.branch for block in spec.blocks):
            self._call["beside"] = np.empty((1, count, spec.hidden_size), np.float32)
        self._out = np.empty((1, count, spec.hidden_size), np.float32)
        arrays = {b: cache.data(b) for b in spec.attention}
        self._past = {b: [data[i].ctypes.data for i in range(2)] for b, data in arrays.items()}
        self._shape = {b: [1, *data.shape[1:]] for b, data in arrays.items()}
        self._dtype = next((data.dtype for data in arrays.values()), None)
        self._numbers = {b: i for i, b in enumerate(spec.attention)}
        self._bindings: dict[str, tuple[Any, list[tuple[str, int]]]] = {}
        self._queries: dict[int, Array] = {}

    def query(self, b: int) -> Array:
        """The queries [count, q_dim] of block b, which was run alone just now, before they are turned."""
        return self._queries[b][0, :, : self._spec.attention[b].q_dim]

    def run(self, name: str, session: Any, blocks: list[int], x: Array, step: Step) -> Array:
        """A graph of some blocks on x [count, hidden] -> [count, hidden]."""
        recurrent = [b for b in blocks if b in self._spec.recurrent]
        if name not in self._bindings:
            self._bindings[name] = self._bind(session, blocks)
        # Outputs whose shapes change are bound for one call.
        binding, biases = self._bindings.pop(name) if recurrent else self._bindings[name]
        self._fill(x, blocks, step)
        for bias, b in biases:
            binding.bind_ortvalue_input(bias, step.apart(b) if bias == APART else step.bias(b))
        trees = {b: step.tree(b) for b in recurrent}
        kept = [_bind_tree(binding, b, tree) for b, tree in trees.items()]
        session.run_with_iobinding(binding, returning(step.rows.count))
        outputs = iter(binding.get_outputs()[-sum(len(tree.outputs) for tree in trees.values()) :] if kept else [])
        for tree in trees.values():
            tree.take([next(outputs).numpy() for _ in tree.outputs])
        return self._out[0].copy()

    def whole(self, name: str, session: Any, rows: Rows, length: int, vocab: int) -> Array:
        """The whole-model graph on a chain: logits [1, vocab] of its last row."""
        if name not in self._bindings:
            self._ids, self._logits = np.zeros((1, len(rows)), np.int64), np.empty((1, 1, vocab), np.float32)
            binding = session.io_binding()
            binding.bind_input("input_ids", "cpu", 0, np.int64, [1, len(rows)], self._ids.ctypes.data)
            binding.bind_output("logits", "cpu", 0, np.float32, [1, 1, vocab], self._logits.ctypes.data)
            self._bind_cache(binding, self._past)
            self._bindings[name] = binding, []
            self._mask = np.ones(next((shape[2] for shape in self._shape.values()), 1), np.int64)
            self._mask_at = self._mask.ctypes.data
        binding, _ = self._bindings[name]
        self._ids[0] = rows.tokens
        binding.bind_input("attention_mask", "cpu", 0, np.int64, [1, length + len(rows)], self._mask_at)
        session.run_with_iobinding(binding, returning(len(rows)))
        return self._logits[0].copy()

    def _fill(self, x: Array, blocks: list[int], step: Step) -> None:
        """Write the inputs that change with every call to their bound buffers."""
        self._call["hidden"][0] = x
        if step.embedding is not None:
            self._call["embedding"][0] = step.embedding
        if "beside" in self._call and step.beside is not None:
            self._call["beside"][0] = step.beside
        self._call["position_ids"][0] = step.rows.positions[step.rows.first :]
        b = next((b for b in blocks if b in self._spec.attention), None)
        if b is not None:
            self._call["seqlens_k"][0] = step.total(b) - 1
            self._call["total_sequence_length"][...] = step.total(b)

    def _bind(self, session: Any, blocks: list[int]) -> tuple[Any, list[tuple[str, int]]]:
        """A binding of all buffers with fixed addresses, and the masks, which are bound by call: (name, a block that
        needs it)."""
        binding, spec = session.io_binding(), self._spec
        wanted = {value.name for value in session.get_inputs()}
        for name, a in self._call.items():
            if name in wanted:
                binding.bind_input(name, "cpu", 0, a.dtype, list(a.shape), a.ctypes.data)
        _bind_array(binding, "hidden_out", self._out)
        attention = [b for b in blocks if b in spec.attention]
        self._bind_cache(binding, attention)
        if len(blocks) == 1 and attention:
            block = spec.attention[blocks[0]]
            width = block.q_dim if block.qk_norm != "none" else block.q_dim + 2 * block.kv_dim
            self._queries[blocks[0]] = np.empty((1, self._count, width), np.float32)
            _bind_array(binding, "query", self._queries[blocks[0]])
        masks = {spec.windows.index((spec.attention[b].window, spec.attention[b].sinks)): b for b in attention}
        bound = [(f"attention_bias.{window}", b) for window, b in masks.items()]
        return binding, bound + [(APART, b) for b in attention[:1] if APART in wanted]

    def _bind_cache(self, binding: Any, blocks: Iterable[int]) -> None:
        for b in blocks:
            for part, address in zip(("key", "value"), self._past[b], strict=True):
                cache = ("cpu", 0, self._dtype, self._shape[b], address)
                binding.bind_input(f"past_key_values.{self._numbers[b]}.{part}", *cache)
                binding.bind_output(f"present.{self._numbers[b]}.{part}", *cache)


def _bind_tree(binding: Any, b: int, tree: RecurrentTree) -> list[NDArray[Any]]:
    """Bind the inputs and outputs of a recurrent block: the arrays to keep until the call is over."""
    names, values = zip(*tree.given(b).items(), strict=True)
    kept = [np.ascontiguousarray(value) for value in values]
    for name, value in zip(names, kept, strict=True):
        binding.bind_cpu_input(name, value)
    for name in tree.outputs:
        binding.bind_output(f"{name}.{b}", "cpu")
    return kept


def _bind_array(binding: Any, name: str, a: NDArray[Any]) -> None:
    binding.bind_output(name, "cpu", 0, a.dtype, list(a.shape), a.ctypes.data)
