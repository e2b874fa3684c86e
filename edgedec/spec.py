"""ModelSpec: what a model computes, as plain facts that every runtime reads and none infers.

A model is `embed`, a stack of layers, and `head`. A layer is two blocks, attention and MLP.
Block 2i is the attention of layer i and block 2i+1 its MLP, so a slice of the stack is a
sequence of block numbers: `spec.blocks(3, 5)` is layers 3 and 4, whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from edgedec.errors import BundleCorrupt

KV_FORMATS = ("f32", "f16", "int8", "int4")
WEIGHT_FORMATS = ("f32", "f16", "int8", "int4")


@dataclass(frozen=True)
class Rope:
    """Rotary positions: pair j turns by `inv_freq[j] * position`; cos and sin are scaled by `scale`.

    `2 * len(inv_freq)` dims of a head are rotated, first half with second half; the rest pass.
    """

    inv_freq: tuple[float, ...]
    scale: float = 1.0


@dataclass(frozen=True)
class Layer:
    """What may differ from layer to layer: which rope (None: no positions) and the window.

    A window of w lets position p see positions p-w+1 to p.
    """

    rope: int | None = 0
    window: int | None = None


@dataclass(frozen=True)
class ModelSpec:
    """The whole arithmetic of a model. Attention input is the normed hidden state if `norm_before`;
    a block's output is normed before it is added back if `norm_after`."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    context_length: int
    layers: tuple[Layer, ...]
    ropes: tuple[Rope, ...]
    norm_eps: float
    attn_scale: float
    tied: bool
    norm_before: bool = True
    norm_after: bool = False
    qk_norm: Literal["none", "head", "full"] = "none"
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    activation: Literal["silu", "gelu_tanh"] = "silu"
    attn_softcap: float = 0.0
    final_softcap: float = 0.0
    embed_scale: float = 1.0

    @property
    def n_layers(self) -> int:
        return len(self.layers)

    @property
    def q_dim(self) -> int:
        return self.n_heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        return self.n_kv_heads * self.head_dim

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The distinct windows of the stack, in order of first use."""
        return tuple(dict.fromkeys(layer.window for layer in self.layers))

    def blocks(self, start: int = 0, stop: int | None = None) -> tuple[int, ...]:
        """The blocks of layers start to stop-1, whole; of all layers by default."""
        stop = self.n_layers if stop is None else stop
        return tuple(range(2 * start, 2 * stop))

    def check(self, where: str = "spec") -> ModelSpec:
        """Refuse numbers that no model can have, before anything is allocated by them."""
        sizes = {
            name: getattr(self, name)
            for name in (
                "vocab_size",
                "hidden_size",
                "intermediate_size",
                "n_heads",
                "n_kv_heads",
                "head_dim",
                "context_length",
                "n_layers",
            )
        }
        for name, value in sizes.items():
            if not 1 <= value <= 1 << 24:
                raise BundleCorrupt(f"{where}.{name}: {value} is out of range")
        if self.n_heads % self.n_kv_heads:
            raise BundleCorrupt(f"{where}: {self.n_heads} heads do not share {self.n_kv_heads} kv heads evenly")
        for i, layer in enumerate(self.layers):
            if layer.rope is not None and not 0 <= layer.rope < len(self.ropes):
                raise BundleCorrupt(f"{where}.layers[{i}].rope: no rope {layer.rope}")
            if layer.window is not None and layer.window < 1:
                raise BundleCorrupt(f"{where}.layers[{i}].window: {layer.window} is out of range")
        for i, rope in enumerate(self.ropes):
            if not 1 <= 2 * len(rope.inv_freq) <= self.head_dim:
                raise BundleCorrupt(f"{where}.ropes[{i}]: rotates {2 * len(rope.inv_freq)} of {self.head_dim} dims")
        return self

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Every weight by its name in a bundle, with its shape; matrices are (out, in)."""
        h, m = self.hidden_size, self.intermediate_size
        shapes: dict[str, tuple[int, ...]] = {"embed": (self.vocab_size, h)}
        for i in range(self.n_layers):
            shapes |= {f"layers.{i}.{name}": shape for name, shape in self._layer_tensors(h, m).items()}
        shapes["final_norm"] = (h,)
        if not self.tied:
            shapes["head"] = (self.vocab_size, h)
        return shapes

    def _layer_tensors(self, h: int, m: int) -> dict[str, tuple[int, ...]]:
        qkv = self.q_dim + 2 * self.kv_dim
        shapes: dict[str, tuple[int, ...]] = {
            "qkv": (qkv, h),
            "o": (h, self.q_dim),
            "gate_up": (2 * m, h),
            "down": (h, m),
        }
        if self.norm_before:
            shapes |= {"attn_norm": (h,), "mlp_norm": (h,)}
        if self.norm_after:
            shapes |= {"attn_post_norm": (h,), "mlp_post_norm": (h,)}
        if self.qk_norm == "head":
            shapes |= {"q_norm": (self.head_dim,), "k_norm": (self.head_dim,)}
        if self.qk_norm == "full":
            shapes |= {"q_norm": (self.q_dim,), "k_norm": (self.kv_dim,)}
        if self.qkv_bias:
            shapes["qkv_bias"] = (qkv,)
        if self.o_bias:
            shapes["o_bias"] = (h,)
        if self.mlp_bias:
            shapes |= {"gate_up_bias": (2 * m,), "down_bias": (h,)}
        return shapes
