"""RWKV-7 (arXiv 2503.14456): time mixing with the generalized delta rule, and channel mixing.

Both read a row and the one before it in the text: x' = x + (before - x) mix, with a mix for each matrix.

Time mixing, for a row with parent state S [key_dim, head_dim] of a head, r, k, v, d, a and g being projections:

    w = exp(-exp(-1/2) sigmoid(d))       the decay of each channel of a key
    a = sigmoid(a)                       the rate at which what is stored under a key is replaced
    u = k key_scale / |k key_scale|;  k = k (1 + (a - 1) key_rate)
    S' = w S - (u a)(u^T S) + k v^T
    y = norm(S'^T r) + (r . (k bonus)) v, times g; then projected

From the second layer on, v = v + (v0 - v) sigmoid(t), v0 being the value of the first layer for the same row, and t a
projection. Channel mixing: down(relu(up x')^2).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, ClassVar, Literal

from edgedec.errors import BundleCorrupt
from edgedec.spec._common import Norm, Shapes, norm_tensors, require_sizes

if TYPE_CHECKING:
    from edgedec.spec import ModelSpec

# The rows of `mix`.
MIXED = ("r", "decay", "k", "v", "rate", "gate")


@dataclass(frozen=True)
class Rwkv7:
    """`width`: of the state that the next row reads. The ranks are the values between the two matrices that decays,
    rates, gates and shares of the first value are made by. `values_of`: the block whose values are mixed in, None: no
    other's. `eps`: of the norm of each head."""

    width: int
    n_heads: int
    head_dim: int
    key_dim: int
    decay_rank: int
    rate_rank: int
    gate_rank: int
    value_rank: int = 0
    values_of: int | None = None
    eps: float = 64e-5
    norm: Norm = "layer"
    post_norm: Norm = "none"
    kind: Literal["rwkv7"] = "rwkv7"
    after: ClassVar[Norm] = "none"
    branch: ClassVar[bool] = False
    # The one row before, as if it were convolved.
    conv_size: ClassVar[int] = 2

    @property
    def conv_dim(self) -> int:
        """Values of a row that the next one reads."""
        return self.width

    @property
    def state_size(self) -> int:
        """Of each value of a head."""
        return self.key_dim

    @property
    def inner_size(self) -> int:
        """Values of all heads."""
        return self.n_heads * self.head_dim

    @property
    def keys(self) -> int:
        """Channels of the keys of all heads."""
        return self.n_heads * self.key_dim

    def tensors(self, hidden: int) -> Shapes:
        """Every weight of the block with its shape; matrices are (out, in)."""
        shapes = self.matrices(hidden) | {
            "mix": (len(MIXED), hidden),
            "decay_bias": (self.keys,),
            "rate_bias": (self.keys,),
            "key_scale": (self.keys,),
            "key_rate": (self.keys,),
            "bonus": (self.keys,),
            "out_norm": (self.inner_size,),
            "out_norm_bias": (self.inner_size,),
        }
        if self.values_of is not None:
            shapes["value_bias"] = (self.inner_size,)
        return shapes | norm_tensors(self.norm, "norm", hidden) | norm_tensors(self.post_norm, "post_norm", hidden)

    def matrices(self, hidden: int) -> Shapes:
        """The tensors that are quantized."""
        shapes: Shapes = {
            "r": (self.keys, hidden),
            "k": (self.keys, hidden),
            "v": (self.inner_size, hidden),
            "o": (hidden, self.inner_size),
            "decay_down": (self.decay_rank, hidden),
            "decay_up": (self.keys, self.decay_rank),
            "rate_down": (self.rate_rank, hidden),
            "rate_up": (self.keys, self.rate_rank),
            "gate_down": (self.gate_rank, hidden),
            "gate_up": (self.inner_size, self.gate_rank),
        }
        if self.values_of is not None:
            shapes |= {"value_down": (self.value_rank, hidden), "value_up": (self.inner_size, self.value_rank)}
        return shapes

    def check(self, where: str) -> None:
        """Refuse numbers that no model can have."""
        names = ("width", "n_heads", "head_dim", "key_dim", "decay_rank", "rate_rank", "gate_rank")
        require_sizes(where, {name: getattr(self, name) for name in names})
        require_sizes(where, {"value_rank": self.value_rank}, least=0 if self.values_of is None else 1)
        if not 0 < self.eps < inf:
            raise BundleCorrupt(f"{where}.eps: {self.eps} is out of range")


@dataclass(frozen=True)
class ChannelMix:
    """The feed-forward of RWKV-7. `width`: as of time mixing."""

    width: int
    inner_size: int
    norm: Norm = "layer"
    post_norm: Norm = "none"
    kind: Literal["channel_mix"] = "channel_mix"
    after: ClassVar[Norm] = "none"
    branch: ClassVar[bool] = False
    conv_size: ClassVar[int] = 2
    # Besides the row before it keeps nothing.
    n_heads: ClassVar[int] = 0
    head_dim: ClassVar[int] = 0
    state_size: ClassVar[int] = 0

    @property
    def conv_dim(self) -> int:
        """Values of a row that the next one reads."""
        return self.width

    def tensors(self, hidden: int) -> Shapes:
        """Every weight of the block with its shape."""
        shapes = self.matrices(hidden) | {"mix": (hidden,)}
        return shapes | norm_tensors(self.norm, "norm", hidden) | norm_tensors(self.post_norm, "post_norm", hidden)

    def matrices(self, hidden: int) -> Shapes:
        """The tensors that are quantized."""
        return {"up": (self.inner_size, hidden), "down": (hidden, self.inner_size)}

    def check(self, where: str) -> None:
        """Refuse numbers that no model can have."""
        require_sizes(where, {"width": self.width, "inner_size": self.inner_size})


def check_rwkv(spec: ModelSpec, where: str) -> None:
    """BundleCorrupt for rows of another width than the model's, and for values of a block that has none such."""
    for b, block in enumerate(spec.blocks):
        if not isinstance(block, Rwkv7 | ChannelMix):
            continue
        here = f"{where}.blocks[{b}]"
        if block.width != spec.hidden_size:
            raise BundleCorrupt(f"{here}.width: {block.width}, not the {spec.hidden_size} of hidden_size")
        if isinstance(block, ChannelMix) or block.values_of is None:
            continue
        owner = spec.blocks[block.values_of] if 0 <= block.values_of < b else None
        if not isinstance(owner, Rwkv7) or owner.inner_size != block.inner_size:
            raise BundleCorrupt(
                f"{here}.values_of: block {block.values_of} is no rwkv7 block before it with as many values"
            )
