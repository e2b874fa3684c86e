"""The stack of layers on the CPU kernels of `kernels/cpu`: one call of C++ for any slice and any rows.

The weights are used where they lie, memory-mapped. A row's logits are the same bytes whatever other
rows share its call. int8 and int4 caches carry a scale for each token and head, made as they are
written: no calibration, and another layout than ONNX Runtime's.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.folder import Bundle
from edgedec.cache.host import Cache
from edgedec.errors import RuntimeUnavailable, UsageError
from edgedec.kernels import cpu
from edgedec.kernels.cpu import loader
from edgedec.runtime.core import Begun, Call, Output, RuntimeOptions, Want, available_cores
from edgedec.runtime.rows import Rows
from edgedec.spec import ModelSpec

Array = NDArray[np.float32]
# Heads of so few values have no int4 cache.
_NARROW = 16
# A run of rows of one sequence, with the cache they go to.
Part = tuple[Rows, Cache]
# Below this many bytes of weights a thread, meeting the others costs more than it saves.
_BYTES_PER_THREAD = 2 << 20


def why_not() -> str | None:
    """None if this runtime can be used here, else the reason in one line."""
    return loader.why_not()


def open(bundle: Bundle, options: RuntimeOptions) -> NativeRuntime:  # noqa: A001
    if reason := why_not():
        raise RuntimeUnavailable(f"engine native: {reason}; or use --engine ort")
    kv = options.kv or bundle.manifest.kv_formats[0]
    if kv not in cpu.FORMATS:
        raise UsageError(f"no KV format {kv!r}; there are: {', '.join(cpu.FORMATS)}")
    threads = options.threads or min(available_cores(), max(1, len(bundle.weights) // _BYTES_PER_THREAD))
    return NativeRuntime(bundle, kv, threads)


class NativeRuntime:
    """A runtime over a bundle's weights file. `isa`: an instruction set to use instead of the best one."""

    name = "native"
    invariant = True

    def __init__(self, bundle: Bundle, kv: str, threads: int, isa: str | None = None) -> None:
        self.spec, self.kv, self.threads = bundle.spec, kv, threads
        self._model, self._isa = _Model(bundle), isa or os.environ.get("EDGEDEC_ISA") or None
        self._blocks = np.array(self.spec.blocks(), np.int32)
        self._engine = self._start()
        self._pid = os.getpid()

    @property
    def isa(self) -> str:
        return self._engine.isa

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

    def new_cache(self, capacity: int) -> Cache:
        return new_cache(self.spec, capacity, self.kv)

    def embed(self, tokens: NDArray[np.int64]) -> Array:
        hidden = np.empty((len(tokens), self.spec.hidden_size), np.float32)
        self._call(hidden, tokens=tokens)
        return hidden

    def run(self, hidden: Array, rows: Rows, cache: Cache, blocks: Sequence[int]) -> Array:
        return self.run_batch(hidden, [(rows, cache)], blocks)

    def run_batch(
        self, hidden: Array, parts: Sequence[Part], blocks: Sequence[int], mass: Array | None = None
    ) -> Array:
        """As `run`, for rows of several sequences: hidden [all their computed rows, hidden_size].

        `mass` [n_layers, n_kv_heads, slots], for one sequence only: what its rows attend to in each slot
        is added to it, summed over rows and query heads.
        """
        out = np.array(hidden, np.float32, order="C")
        self._call(out, parts, blocks=np.array(blocks, np.int32), mass=mass)
        return out

    def head(self, hidden: Array) -> Array:
        logits = np.empty((len(hidden), self.spec.vocab_size), np.float32)
        self._call(np.ascontiguousarray(hidden, np.float32), head_from=0, logits=logits)
        return logits

    def best(self, hidden: Array, k: int = 1) -> tuple[NDArray[np.int32], Array]:
        """The k best tokens of each row, the best first, and their logits; nothing else is kept."""
        ids = np.empty((len(hidden), min(k, self.spec.vocab_size)), np.int32)
        logits = np.empty(ids.shape, np.float32)
        self._call(np.ascontiguousarray(hidden, np.float32), head_from=0, top=(ids, logits))
        return ids, logits

    def logits(self, rows: Rows, cache: Cache, skip: int) -> Array:
        return self.logits_batch([(rows, cache)], skip)

    def call(self, rows: Rows, cache: Cache, skip: int, want: Want, begun: Begun | None = None) -> Output:
        n, blocks = rows.count - skip, self._blocks
        tokens: NDArray[np.int64] | None = rows.tokens[rows.first :]
        hidden: Array | None = None
        if begun is not None:
            tokens, hidden, blocks = None, np.array(begun.hidden, np.float32, order="C"), blocks[begun.block :]
        elif want.hidden:
            hidden = np.empty((rows.count, self.spec.hidden_size), np.float32)
        logits = np.empty((n, self.spec.vocab_size), np.float32) if want.logits else None
        ids = scores = None
        if want.top:
            ids = np.empty((n, min(want.top, self.spec.vocab_size)), np.int32)
            scores = np.empty(ids.shape, np.float32)
        top = None if ids is None else (ids, scores)
        head_from = skip if want.logits or want.top else -1
        self._call(hidden, [(rows, cache)], tokens=tokens, blocks=blocks, head_from=head_from, logits=logits, top=top)
        return Output(logits, ids, scores, hidden[skip:] if want.hidden and hidden is not None else None)

    def call_all(self, calls: Sequence[Call]) -> list[Output]:
        """One call for the blocks of all rows, and one for the head of those that are wanted."""
        if any(call.begun is not None for call in calls):
            return [self.call(*call) for call in calls]
        order = sorted(range(len(calls)), key=lambda i: id(calls[i].cache.shared))
        outputs = self._call_all([calls[i] for i in order])
        return [output for _, output in sorted(zip(order, outputs, strict=True), key=lambda pair: pair[0])]

    def _call_all(self, calls: Sequence[Call]) -> list[Output]:
        """Those with one shared cache are neighbours: they attend to it together."""
        hidden = np.empty((sum(call.rows.count for call in calls), self.spec.hidden_size), np.float32)
        tokens = np.concatenate([call.rows.tokens[call.rows.first :] for call in calls])
        self._call(hidden, [(call.rows, call.cache) for call in calls], tokens=tokens, blocks=self._blocks)
        ends = np.cumsum([call.rows.count for call in calls])
        parts = [
            hidden[end - call.rows.count + call.skip : end] if _says(call.want) else hidden[:0]
            for call, end in zip(calls, ends, strict=True)
        ]
        said = self._heads(parts, [call.want for call in calls])
        return [
            replace(output, hidden=hidden[end - call.rows.count + call.skip : end]) if call.want.hidden else output
            for output, call, end in zip(said, calls, ends, strict=True)
        ]

    def _heads(self, parts: Sequence[Array], wants: Sequence[Want]) -> list[Output]:
        """The head on hidden states of several texts, once for those that want all logits and once for the others."""
        outputs = [Output()] * len(parts)
        for logits in (True, False):
            some = [i for i, want in enumerate(wants) if want.logits is logits and len(parts[i])]
            if not some:
                continue
            top = max(wants[i].top for i in some)
            said = self._head(np.concatenate([parts[i] for i in some]), Want(logits, top))
            at = 0
            for i in some:
                outputs[i] = _part(said, slice(at, at + len(parts[i])), wants[i].top)
                at += len(parts[i])
        return outputs

    def _head(self, hidden: Array, want: Want) -> Output:
        n, vocab = len(hidden), self.spec.vocab_size
        logits = np.empty((n, vocab), np.float32) if want.logits else None
        ids = np.empty((n, min(want.top, vocab)), np.int32) if want.top else None
        scores = None if ids is None else np.empty(ids.shape, np.float32)
        self._call(hidden, head_from=0, logits=logits, top=None if ids is None else (ids, scores))
        return Output(logits, ids, scores)

    def logits_batch(self, parts: Sequence[Part], skip: int = 0) -> Array:
        """Embed, the whole stack and head, for rows of several sequences: logits of all but the first `skip`."""
        tokens = np.concatenate([rows.tokens[rows.first :] for rows, _ in parts])
        logits = np.empty((len(tokens) - skip, self.spec.vocab_size), np.float32)
        self._call(None, parts, tokens=tokens, blocks=self._blocks, head_from=skip, logits=logits)
        return logits

    def _call(
        self,
        hidden: Array | None,
        parts: Sequence[Part] = (),
        *,
        tokens: NDArray[np.int64] | None = None,
        blocks: NDArray[np.int32] | None = None,
        head_from: int = -1,
        logits: Array | None = None,
        top: tuple[NDArray[np.int32], Array | None] | None = None,
        mass: Array | None = None,
    ) -> None:
        call, keep = cpu.Call(head_from=head_from), list[Any]()
        if hidden is not None:
            if hidden.ndim != 2 or hidden.shape[1] != self.spec.hidden_size:
                raise UsageError(f"hidden {list(hidden.shape)}: expected [rows, {self.spec.hidden_size}]")
            call.rows, call.hidden = len(hidden), _address(hidden)
        if tokens is not None:
            keep.append(ids := np.ascontiguousarray(tokens, np.int64))
            call.rows, call.tokens = len(ids), _address(ids)
        if blocks is not None and len(blocks):
            keep.append(positions := _joined([rows.positions[rows.first :] for rows, _ in parts]))
            if len(positions) != call.rows:
                raise UsageError(f"{call.rows} hidden states for {len(positions)} rows")
            sequences, owners = self._sequences(parts, mass)
            keep.append(owners)
            call.n_blocks, call.blocks, call.positions = len(blocks), _address(blocks), _address(positions)
            call.n_sequences, call.sequences = len(parts), sequences
        if logits is not None:
            call.logits = _address(logits)
        if top is not None:
            call.top, call.top_ids = top[0].shape[1], _address(top[0])
            call.top_logits = None if top[1] is None else _address(top[1])
        if os.getpid() != self._pid:
            # A forked process has the memory and none of the threads.
            self._engine, self._pid = self._start(), os.getpid()
        try:
            self._engine.run(call)
        except ValueError as error:
            raise UsageError(f"engine native refuses the call: {error}") from None

    def _sequences(self, parts: Sequence[Part], mass: Array | None) -> tuple[Any, list[Any]]:
        """One entry for each part; and what must live as long as the call."""
        sequences, keep, at = (cpu.Sequence * len(parts))(), list[Any](), 0
        if len({id(cache) for _, cache in parts}) < len(parts):
            raise UsageError("two runs of rows for one cache in a call: join them to a tree")
        for s, (rows, cache) in zip(sequences, parts, strict=True):
            cache.reserve(len(rows))
            s.row, s.rows, s.length, s.first = at, rows.count, cache.length, rows.first
            s.allocated, s.kv, s.cache = cache.allocated, cpu.FORMATS[cache.kv], _address(cache.data)
            at += rows.count
            if cache.data.nbytes != self._cache_bytes(cache):
                raise UsageError(f"a {cache.kind} cache of another engine or model")
            if cache.shared is not None:
                s.shared, s.shared_allocated = cache.n_shared, cache.shared.shape[3]
                s.shared_cache = _address(cache.shared)
            if not rows.is_chain:
                keep.append(parents := rows.parents.astype(np.int32))
                s.parents = _address(parents)
            if mass is not None:
                slots = (self.spec.n_layers, self.spec.n_kv_heads, cache.length + len(rows))
                if len(parts) != 1 or mass.shape != slots or mass.dtype != np.float32 or not mass.flags.c_contiguous:
                    raise UsageError(f"mass: expected float32 {list(slots)} for one sequence")
                s.mass = _address(mass)
        return sequences, keep

    def _cache_bytes(self, cache: Cache) -> int:
        spec = self.spec
        return spec.n_layers * 2 * spec.n_kv_heads * cache.allocated * cpu.kv_row_bytes(spec.head_dim, cache.kv)


def new_cache(spec: ModelSpec, capacity: int, kv: str) -> Cache:
    """A cache as the kernels lay it out: f32 and f16 as anywhere; int8 and int4 with scales in each row.

    Of narrow heads an int4 row would be half scales, and too coarse (perplexity +41 % on a real model of
    8 values a head): they are kept in int8.
    """
    if kv not in cpu.FORMATS:
        raise UsageError(f"no KV format {kv!r}; there are: {', '.join(cpu.FORMATS)}")
    if kv == "int4" and spec.head_dim <= _NARROW:
        kv = "int8"
    size = cpu.kv_row_bytes(spec.head_dim, kv)
    dtype: Any = {"f32": np.float32, "f16": np.float16}.get(kv, np.uint8)
    kind = kv if kv in ("f32", "f16") else f"{kv}-by-token"
    return Cache(spec, capacity, kv, row=(dtype, size // np.dtype(dtype).itemsize), kind=kind, shares=True)


def _says(want: Want) -> bool:
    return want.logits or want.top > 0


def _part(said: Output, rows: slice, top: int) -> Output:
    """Some rows of an output, and no more of the best tokens than were wanted."""
    return Output(
        None if said.logits is None else said.logits[rows],
        said.ids[rows, :top] if said.ids is not None and top else None,
        said.scores[rows, :top] if said.scores is not None and top else None,
    )


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _joined(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.ascontiguousarray(parts[0], np.int64) if len(parts) == 1 else np.concatenate(parts)


class _Model:
    """The C++ view of a bundle; keeps alive what it points to."""

    def __init__(self, bundle: Bundle) -> None:
        self._tensors, self._weights = bundle.manifest.tensors, bundle.weights
        self._base = _address(self._weights)
        spec = bundle.spec
        self._layers = (cpu.Layer * spec.n_layers)(*[self._layer(spec, i) for i in range(spec.n_layers)])
        ropes = zip(bundle.manifest.ropes, spec.ropes, strict=True)
        self._ropes = (cpu.Rope * len(spec.ropes))(
            *[
                cpu.Rope(self._base + cos, self._base + sin, len(rope.inv_freq), spec.context_length)
                for (cos, sin), rope in ropes
            ]
        )
        self.struct = cpu.Model(
            spec.vocab_size,
            spec.hidden_size,
            spec.intermediate_size,
            spec.n_heads,
            spec.n_kv_heads,
            spec.head_dim,
            spec.n_layers,
            len(spec.ropes),
            cpu.QK_NORMS[spec.qk_norm],
            cpu.ACTIVATIONS[spec.activation],
            spec.norm_eps,
            spec.attn_scale,
            spec.attn_softcap,
            spec.final_softcap,
            spec.embed_scale,
            0,
            self._tensor("embed"),
            self._tensor("embed" if spec.tied else "head"),
            self._vector("final_norm"),
            self._layers,
            self._ropes,
        )

    def _layer(self, spec: ModelSpec, i: int) -> cpu.Layer:
        facts = spec.layers[i]
        layer = cpu.Layer(rope=-1 if facts.rope is None else facts.rope, window=facts.window or 0)
        for name in cpu.Layer.MATRICES.split():
            setattr(layer, name, self._tensor(f"layers.{i}.{name}"))
        for name in cpu.Layer.VECTORS.split():
            setattr(layer, name, self._vector(f"layers.{i}.{name}"))
        return layer

    def _tensor(self, name: str) -> cpu.Tensor:
        t = self._tensors[name]
        scales = self._base + t.scales if t.block else 0
        n, k = t.shape
        return cpu.Tensor(cpu.FORMATS[t.format], cpu.LAYOUTS[t.layout], n, k, t.block, 0, self._base + t.data, scales)

    def _vector(self, name: str) -> int | None:
        """Vectors are always f32; None if the model has no such one."""
        return self._base + self._tensors[name].data if name in self._tensors else None
