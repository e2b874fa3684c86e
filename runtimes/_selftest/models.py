"""Small models in memory, together every kernel: weights from integers alone, so that they are the same everywhere."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.integers import BITS, packed
from edgedec.bundle.manifest import Tensor, WeightFormat
from edgedec.spec import Attention, Block, Conv, Delta, EncoderEntry, Mlp, ModelSpec, Moe, Rope, Ssm

HIDDEN, VOCAB, CONTEXT = 64, 600, 128
_ALIGN = 64
_HEADS = Attention(n_heads=4, n_kv_heads=2, head_dim=32, scale=0.1767766952966369)
_SSM = Ssm(n_heads=4, head_dim=16, state_size=16, n_groups=2, norm_groups=2, dt_min=0.001, dt_max=0.5)
_MOE = Moe(n_experts=6, top_k=2, inner_size=16)


def _spec(name: str, *layers: tuple[Block, ...]) -> ModelSpec:
    # The tables of cos and sin are in the bundle, so only the number of frequencies matters.
    return ModelSpec(name, VOCAB, HIDDEN, CONTEXT, layers, 1e-5, False, (Rope((0.5,) * 16, 1.0),))


# By the kind of block that a case is about.
SPECS: dict[str, ModelSpec] = {
    "dense": _spec("dense", (_HEADS, Mlp(96)), (replace(_HEADS, window=9, sinks=2), Mlp(72))),
    "policies": replace(
        _spec("policies", (_HEADS, Mlp(96)), (replace(_HEADS, window=150, sinks=2, softcap=3.0), Mlp(96))),
        context_length=2 * CONTEXT,
    ),
    "norms": replace(
        _spec(
            "norms",
            (replace(_HEADS, norm="layer", qk_norm="full", qkv_bias=True, o_bias=True), Mlp(96, False, "gelu", True)),
            (replace(_HEADS, qk_norm="head", softcap=4.0, post_norm="rms"), Mlp(80, activation="gelu_tanh")),
        ),
        tied=True,
        final_softcap=6.0,
        embed_scale=2.5,
    ),
    "moe": _spec(
        "moe",
        (_HEADS, replace(_MOE, router="softmax_topk", top_k=3, shared_size=32, shared_gate=True, post_norm="rms")),
        (_HEADS, replace(_MOE, router="sigmoid", router_bias=True, scale=0.7)),
    ),
    "facts": replace(
        _spec(
            "facts",
            (
                replace(_HEADS, rope=None, slopes=(0.5, 0.25, 0.125, 0.0625), gate="head", inner_norm="layer"),
                Mlp(96, False, "xielu"),
            ),
            (
                replace(_HEADS, sink_logit=True, window=9, qk_norm="head", qk_norm_last=True),
                Moe(6, 2, 24, "softmax_topk", normalize=False, bias=True, logit_bias=True, clamped=True),
            ),
            (
                replace(_HEADS, branch=True, qk_norm="heads", qk_norm_kind="layer", clip=1.5, gate="channel"),
                Mlp(96, False, "relu2", True, norm="layer", inner_norm="rms"),
            ),
            (_HEADS, replace(_MOE, gated=False, router="sparsemixer", jitter=0.25)),
        ),
        head_bias=True,
        entry=EncoderEntry(positions=CONTEXT, norm="layer"),
    ),
    "conv": _spec("conv", (Conv(80, 5, bias=True), Mlp(96)), (_HEADS, Mlp(96)), (Conv(HIDDEN), Mlp(96))),
    "delta": _spec(
        "delta",
        (Delta(n_heads=4, head_dim=16, key_dim=24, n_groups=2), Mlp(96)),
        (_HEADS, Mlp(96)),
        (Delta(3, 20, 16, 3, 3, decay="channel", gate="sigmoid", rank=16, beta_scale=2.0), Mlp(96)),
    ),
    "ssm": _spec("ssm", (_SSM, Mlp(96)), (_HEADS, replace(_MOE, inner_size=24, router="softmax"))),
}


@dataclass(frozen=True)
class Packing:
    """How matrices are kept. zeros: with zero points, except of embeddings."""

    format: WeightFormat
    block: int = 32
    zeros: bool = False


class GoldenBundle:
    """The parts of `Bundle` that a runtime uses."""

    path = Path("self-test")

    def __init__(self, spec: ModelSpec, packing: Packing) -> None:
        self.spec = spec
        self._parts, self._size = list[tuple[int, NDArray[Any]]](), _ALIGN
        tensors = {name: self._tensor(name, shape, packing) for name, shape in spec.tensors().items()}
        ropes = tuple(self._rope(i, len(rope.inv_freq)) for i, rope in enumerate(spec.ropes))
        self.manifest: Any = SimpleNamespace(
            tensors=tensors, ropes=ropes, kv_formats=("int8",), heads={}, whole_texts=False
        )
        self.weights = np.zeros(self._size, np.uint8)
        for at, array in self._parts:
            self.weights[at : at + array.nbytes] = array.reshape(-1).view(np.uint8)

    def array(self, offset: int, dtype: Any, shape: tuple[int, ...]) -> NDArray[Any]:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return self.weights[offset : offset + size].view(dtype).reshape(shape)

    def _put(self, array: NDArray[Any]) -> int:
        at = self._size
        self._parts.append((at, np.ascontiguousarray(array)))
        self._size += -(-array.nbytes // _ALIGN) * _ALIGN
        return at

    def _tensor(self, name: str, shape: tuple[int, ...], packing: Packing) -> Tensor:
        if name not in self.spec.matrices:
            return Tensor("f32", shape, self._put(_vector(name, shape)))
        n, k = shape
        fmt, spread = packing.format, math.sqrt((0.75 if name == "embed" else 6.75) / k)
        if fmt == "f32" or fmt == "f16":
            values = numbers(name, shape) * np.float32(spread)
            return Tensor(fmt, shape, self._put(values if fmt == "f32" else values.astype(np.float16)))
        blocks = -(-k // packing.block)
        stored = _stored(name, n, k, fmt, packing.block)
        steps = max(1 << BITS[fmt] - 1, 4)
        scales = (np.float32(spread / steps) * (1 + numbers(f"{name}.scales", (n, blocks)) / 4)).astype(np.float16)
        tensor = Tensor(fmt, shape, self._put(stored), self._put(scales), packing.block)
        if not packing.zeros or name == "embed":
            return tensor
        return replace(tensor, zeros=self._put(_zeros(name, n, blocks, fmt)))

    def _rope(self, number: int, pairs: int) -> tuple[int, int]:
        """Points of a circle by their rational parameter, because sines differ between math libraries."""
        t = numbers(f"rope.{number}", (self.spec.context_length, pairs)).astype(np.float64)
        cos, sin = (1 - t * t) / (1 + t * t), 2 * t / (1 + t * t)
        return self._put(cos.astype(np.float32)), self._put(sin.astype(np.float32))


def integers(name: str, count: int) -> NDArray[np.uint64]:
    """Pseudo-random 64-bit integers, seeded by a name (splitmix64)."""
    seed = np.uint64(int.from_bytes(name.encode()[-7:].rjust(7, b"\0"), "little") + 31 * len(name))
    with np.errstate(over="ignore"):
        x = (np.arange(count, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        x = x + seed * np.uint64(0xD1342543DE82EF95)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


def numbers(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Pseudo-random floats in [-1, 1), seeded by a name."""
    found = (integers(name, math.prod(shape)) >> np.uint64(40)).astype(np.float32) / np.float32(1 << 23) - np.float32(1)
    return np.asarray(found.reshape(shape), np.float32)


def _vector(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    values = numbers(name, shape)
    if name.endswith(".a"):
        return np.asarray(np.float32(-1.1) + values * np.float32(0.9), np.float32)
    return np.asarray(np.float32(0 if name.endswith("bias") else 1) + values * np.float32(0.25), np.float32)


def _stored(name: str, n: int, k: int, fmt: str, block: int) -> NDArray[np.uint8]:
    """Quantized weights row by row; what fills up the last block stands for zero."""
    top, middle, blocks = (1 << BITS[fmt]) - 1, 1 << BITS[fmt] - 1, -(-k // block)
    q = np.full((n, blocks * block), middle, np.uint8)
    q[:, :k] = (integers(name, n * k) >> np.uint64(20)).reshape(n, k).astype(np.uint8) & np.uint8(top)
    return packed(q, fmt)


def _zeros(name: str, n: int, blocks: int, fmt: str) -> NDArray[np.uint8]:
    """Zero points near the middle, row by row, two of int4 in a byte."""
    middle, wide = (6, 3) if fmt == "int4" else (120, 15)
    found = (middle + (integers(f"{name}.zeros", n * blocks) & np.uint64(wide))).astype(np.uint8).reshape(n, blocks)
    if fmt == "int8":
        return found
    even = np.pad(found, ((0, 0), (0, blocks % 2)))
    return np.asarray(even[:, 0::2] | even[:, 1::2] << 4)
