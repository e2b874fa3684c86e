"""The structs of `kernels/cuda/args.h` as bytes: same order of fields, checked by a test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Literal

FORMATS = {"f32": 1, "f16": 2, "int8": 3, "int4": 4, "int3": 5, "int2": 6}
FORMAT_NAMES = {number: name for name, number in FORMATS.items()}
EPILOGUES = {"store": 0, "add": 1, "glu": 2, "activate": 3}
ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "gelu": 2, "relu": 3, "clamped_swiglu": 4, "relu2": 5, "xielu": 6}
NORMS = {"none": 0, "rms": 1, "layer": 2}
ROUTERS = {"softmax": 0, "softmax_topk": 1, "sigmoid": 2, "sparsemixer": 3}
PAGE_SLOTS, CHUNK, LANES, STRIP, PRODUCT_STEPS, MOST_QUERIES = 64, 256, 16, 512, 64, 16
MATRIX_ROWS, MATRIX_OUTPUTS = 64, 32
# Shared memory of a block: MatrixMemory, and afterwards the outputs and what gates them, which take more.
MATRIX_BYTES = 2 * 4 * MATRIX_ROWS * MATRIX_OUTPUTS

Activation = Literal["silu", "gelu_tanh", "gelu", "relu", "clamped_swiglu", "relu2", "xielu"]

_weights, _norm, _prepared = Struct("@3P4i"), Struct("@2Pif"), Struct("@4P")


@dataclass(frozen=True)
class DeviceWeights:
    """A matrix on the device; `data` 0: none."""

    data: int = 0
    scales: int = 0
    zeros: int = 0
    format: int = 0
    n: int = 0
    k: int = 0
    block: int = 0

    @property
    def quantized(self) -> bool:
        return self.format >= FORMATS["int8"]

    @property
    def blocks(self) -> int:
        return -(-self.k // self.block)

    @property
    def kpad(self) -> int:
        return self.blocks * self.block

    @property
    def steps(self) -> int:
        return self.kpad // (16 if self.block == 16 else 32)

    @property
    def groups(self) -> int:
        return -(-self.n // LANES)

    def pack(self) -> bytes:
        return _weights.pack(self.data, self.scales, self.zeros, self.format, self.n, self.k, self.block)


@dataclass(frozen=True)
class Norm:
    """A norm's weight and bias on the device."""

    weight: int = 0
    bias: int = 0
    kind: int = 0
    eps: float = 0.0

    def pack(self) -> bytes:
        return _norm.pack(self.weight, self.bias, self.kind, self.eps)


@dataclass(frozen=True)
class Prepared:
    """The addresses of rows prepared for a product."""

    q: int = 0
    scale: int = 0
    sum: int = 0
    block_sum: int = 0

    def pack(self) -> bytes:
        return _prepared.pack(self.q, self.scale, self.sum, self.block_sum)


_embed_head, _embed_tail = Struct("@P"), Struct("@PfiP")
_prepare_head, _prepare_tail = Struct("@3P"), Struct("@4i")
_product_tail = Struct("@4P8ifi")
_rope, _attend, _sums = Struct("@6Pq6if5i2P"), Struct("@4Pq8i2f4i4P2i"), Struct("@Pq")
_rows_head, _rows_tail = Struct("@3P"), Struct("@4i")
_glu, _copy, _best = Struct("@3P4i4f"), Struct("@3P2ifi"), Struct("@6P2i")
_route, _combine, _move = Struct("@6P4if2if"), Struct("@6P2i"), Struct("@2P2i")
_bounds, _view, _plan = Struct("@P2q4i"), Struct("@9Pq4i"), Struct("@8P2i")
STEP = Struct("@21P6i3P")
PLAN_BYTES = _plan.size


def embed(
    step: int, w: DeviceWeights, out: int, scale: float, hidden: int, positions: int = 0, norm: Norm | None = None
) -> bytes:
    tail = _embed_tail.pack(out, scale, hidden, positions) + (norm or Norm()).pack()
    return _embed_head.pack(step) + w.pack() + tail


def prepare(
    step: int,
    x: int,
    normed: int,
    w: DeviceWeights,
    norm: Norm,
    out: Prepared,
    k: int,
    head: bool = False,
    copies: int = 1,
) -> bytes:
    head_part = _prepare_head.pack(step, x, normed)
    return head_part + w.pack() + norm.pack() + out.pack() + _prepare_tail.pack(k, head, copies, 0)


@dataclass(frozen=True)
class Product:
    """The arguments of a product. fused: thread blocks prepare their rows themselves."""

    w: DeviceWeights
    out: int
    stride: int
    a: Prepared = Prepared()
    norm: Norm = Norm()
    x: int = 0
    bias: int = 0
    experts: int = 0
    epilogue: str = "store"
    activation: Activation = "silu"
    fused: bool = False
    head: bool = False
    copies: int = 1
    spread: int = 0
    softcap: float = 0.0
    tile: int = 1

    def pack(self, step: int) -> bytes:
        kinds = EPILOGUES[self.epilogue], ACTIVATIONS[self.activation], self.fused, self.head
        tail = _product_tail.pack(
            self.x, self.bias, self.out, self.experts, *kinds, self.copies, self.spread, self.stride, 0,
            self.softcap, self.tile,
        )  # fmt: skip
        return _embed_head.pack(step) + self.w.pack() + self.a.pack() + self.norm.pack() + tail


@dataclass(frozen=True)
class HeadNorms:
    """Norms of queries and keys by head: addresses of weights, and of biases if they are LayerNorms. own: each head has
    weights of its own; last: they come after the rope."""

    q: int = 0
    k: int = 0
    q_bias: int = 0
    k_bias: int = 0
    own: bool = False
    last: bool = False


def rope(
    step: int, qkv: int, cos: int, sin: int, norms: HeadNorms, offset: int, heads: int, kv_heads: int, dim: int,
    pairs: int, kv_format: int, view: int, eps: float, row_bytes: int, width: int,
) -> bytes:  # fmt: skip
    numbers = heads, kv_heads, dim, pairs, kv_format, view
    more = width, norms.own, norms.last, 0, norms.q_bias, norms.k_bias
    return _rope.pack(step, qkv, cos, sin, norms.q, norms.k, offset, *numbers, eps, row_bytes, *more)


@dataclass(frozen=True)
class KeptWeights:
    """The kv heads of an attention launch, and the address of their kept weights; 0: not kept."""

    head0: int = 0
    heads: int = 0
    weights: int = 0
    totals: int = 0


def attend(
    step: int, qkv: int, parts: int, out: int, offset: int, heads: int, kv_heads: int, dim: int, window: int,
    sinks: int, kv_format: int, view: int, row_bytes: int, scale: float, softcap: float, tile: int, keys: int,
    kept: KeptWeights, sink_logit: int, slopes: int, width: int, gate: int,
) -> bytes:  # fmt: skip
    numbers = heads, kv_heads, dim, window, sinks, kv_format, view, row_bytes
    places = kept.head0, kept.heads, keys, kept.weights, kept.totals, sink_logit, slopes
    return _attend.pack(step, qkv, parts, out, offset, *numbers, scale, softcap, tile, *places, width, gate)


def attention_sums(attended: bytes, sums: int, width: int) -> bytes:
    """attended: the arguments of the launch that kept the weights."""
    return attended + _sums.pack(sums, width)


@dataclass(frozen=True)
class ViewMemory:
    """Working memory of a view on the device, in the order of `ViewArgs`, with row widths; 0: none."""

    seen: int
    pages: int
    bounds: int
    near: int = 0
    slots: int = 0
    runs: int = 0
    counts: int = 0
    means: int = 0
    floats: int = 0
    bounds_offset: int = 0
    pages_stride: int = 0
    slots_stride: int = 0


def viewed(attended: bytes, memory: ViewMemory, plan: int, listed: bool) -> bytes:
    """attended: as `attend` packs them; listed: of slots one by one."""
    places = (memory.seen, memory.pages, memory.bounds, memory.near, memory.slots, memory.runs, memory.counts)
    numbers = memory.bounds_offset, memory.pages_stride, memory.slots_stride, plan, listed
    return attended + _view.pack(*places, memory.means, memory.floats, *numbers)


def view_plan(places: Sequence[int], n_items: int, groups: int) -> bytes:
    """places: of items, part, part_row, chunks, page_chunks, sights, lists, logs."""
    return _plan.pack(*places, n_items, groups)


def bounds(pages: int, offset: int, bounds_offset: int, dim: int, fmt: int, row_bytes: int) -> bytes:
    return _bounds.pack(pages, offset, bounds_offset, dim, fmt, row_bytes, 0)


def norm_rows(step: int, x: int, out: int, norm: Norm, width: int, part: int, stride: int, add: bool) -> bytes:
    return _rows_head.pack(step, x, out) + norm.pack() + _rows_tail.pack(width, part, stride, add)


def gated(
    step: int, x: int, out: int, inner: int, glu: bool, activation: Activation, copies: int = 1,
    xielu: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0),
) -> bytes:  # fmt: skip
    """xielu: factors above and below 0, of x, and the largest exponent."""
    return _glu.pack(step, x, out, inner, glu, ACTIVATIONS[activation], copies, *xielu)


def copy_rows(step: int, x: int, out: int, width: int, stride: int = 0, limit: float = 0.0) -> bytes:
    """stride: of x; 0: its rows lie side by side. limit: values are cut to -limit .. limit; 0: they are not."""
    return _copy.pack(step, x, out, width, stride or width, limit, 0)


def best(step: int, logits: int, strips: int, keys: int, ids: int, scores: int, vocab: int, top: int) -> bytes:
    return _best.pack(step, logits, strips, keys, ids, scores, vocab, top)


def route(
    step: int, logits: int, bias: int, experts: int, weights: int, scratch: int, n: int, top_k: int, router: str,
    normalize: bool, scale: float, groups: int, top_groups: int, jitter: float,
) -> bytes:  # fmt: skip
    counts = n, top_k, ROUTERS[router], normalize
    return _route.pack(step, logits, bias, experts, weights, scratch, *counts, scale, groups, top_groups, jitter)


def combine(step: int, experts: int, weights: int, shared: int, gate: int, out: int, top_k: int, width: int) -> bytes:
    return _combine.pack(step, experts, weights, shared, gate, out, top_k, width)


def move(moves: int, runs: int, n: int) -> bytes:
    return _move.pack(moves, runs, n, 0)
