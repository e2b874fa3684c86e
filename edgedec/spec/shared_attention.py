"""Attention over the keys and values of an earlier block: it keeps no slots and projects queries only. Gemma 4's last
layers read the last full layer before them, or the last one with a window; SambaY's second half reads one
layer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal

from edgedec.errors import BundleCorrupt
from edgedec.spec._common import Norm, Shapes, norm_tensors, require_sizes
from edgedec.spec.attention import Attention
from edgedec.spec.differential import pair_tensors

if TYPE_CHECKING:
    from edgedec.spec import ModelSpec


@dataclass(frozen=True)
class SharedAttention:
    """`slots_of`: the number of the block whose slots it reads, which has as many kv heads, heads as wide, and the same
    window. The other fields are those of attention."""

    slots_of: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    scale: float
    rope: int | None = 0
    window: int | None = None
    sinks: int = 0
    softcap: float = 0.0
    qk_norm: Literal["none", "head"] = "none"
    q_bias: bool = False
    o_bias: bool = False
    differential: float = 0.0
    norm: Norm = "rms"
    post_norm: Norm = "none"
    branch: bool = False
    kind: Literal["shared_attention"] = "shared_attention"
    after: ClassVar[Norm] = "none"

    @property
    def q_dim(self) -> int:
        """Values of all queries, and of what `o` reads."""
        return self.attention.q_dim

    @cached_property
    def attention(self) -> Attention:
        """Attention that scores its queries alike."""
        sizes = (self.n_heads, self.n_kv_heads, self.head_dim, self.scale, self.rope, self.window, self.sinks)
        return Attention(*sizes, self.softcap, self.qk_norm, differential=self.differential)

    def tensors(self, hidden: int) -> Shapes:
        """Every weight of the block with its shape; matrices are (out, in)."""
        shapes = self.matrices(hidden)
        shapes |= norm_tensors(self.norm, "norm", hidden) | norm_tensors(self.post_norm, "post_norm", hidden)
        if self.qk_norm != "none":
            shapes |= norm_tensors("rms", "q_norm", self.head_dim)
        if self.q_bias:
            shapes["q_bias"] = (self.q_dim,)
        if self.o_bias:
            shapes["o_bias"] = (hidden,)
        return shapes | pair_tensors(self)

    def matrices(self, hidden: int) -> Shapes:
        """The tensors that are quantized."""
        return {"q": (self.q_dim, hidden), "o": (hidden, self.q_dim)}

    def check(self, where: str) -> None:
        """Refuse numbers that no model can have."""
        require_sizes(where, {"slots_of": self.slots_of}, least=0)
        self.attention.check(where)


# What a block and the one whose slots it reads have in common.
_ALIKE = ("n_kv_heads", "head_dim", "window", "sinks")


def check_shared(spec: ModelSpec, where: str) -> None:
    """BundleCorrupt for a block that reads slots of other heads, or of no attention block before it."""
    for b, block in enumerate(spec.blocks):
        if not isinstance(block, SharedAttention):
            continue
        owner = spec.blocks[block.slots_of] if block.slots_of < b else None
        if not isinstance(owner, Attention) or owner.kind != "attention" or not spec.causal:
            raise BundleCorrupt(f"{where}.blocks[{b}].slots_of: block {block.slots_of} is no attention block before it")
        odd = [name for name in _ALIKE if getattr(block, name) != getattr(owner, name)]
        if odd or owner.slopes or owner.sink_logit:
            raise BundleCorrupt(
                f"{where}.blocks[{b}].{odd[0] if odd else 'slots_of'}: not as in block {block.slots_of}"
            )
