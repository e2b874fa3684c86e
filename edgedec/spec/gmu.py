"""The gated memory unit (SambaY, arXiv:2507.06607): out(m silu(gate x)), m being what an earlier block's scan made of
the same row before its own gate. It keeps no state, so it costs two products where a state space would cost a scan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from edgedec.errors import BundleCorrupt
from edgedec.spec._common import Norm, Shapes, norm_tensors, require_sizes
from edgedec.spec.s6 import S6

if TYPE_CHECKING:
    from edgedec.spec import ModelSpec


@dataclass(frozen=True)
class Gmu:
    """`values_of`: the number of the s6 block whose outputs before the gate are the memory m; it has as many
    channels."""

    values_of: int
    inner_size: int
    bias: bool = False
    norm: Norm = "rms"
    post_norm: Norm = "none"
    kind: Literal["gmu"] = "gmu"
    after: ClassVar[Norm] = "none"
    branch: ClassVar[bool] = False

    def tensors(self, hidden: int) -> Shapes:
        """Every weight of the block with its shape; matrices are (out, in)."""
        shapes = self.matrices(hidden)
        shapes |= norm_tensors(self.norm, "norm", hidden) | norm_tensors(self.post_norm, "post_norm", hidden)
        if self.bias:
            shapes |= {"gate_bias": (self.inner_size,), "out_bias": (hidden,)}
        return shapes

    def matrices(self, hidden: int) -> Shapes:
        """The tensors that are quantized."""
        return {"gate": (self.inner_size, hidden), "out": (hidden, self.inner_size)}

    def check(self, where: str) -> None:
        """Refuse numbers that no model can have."""
        require_sizes(where, {"values_of": self.values_of}, least=0)
        require_sizes(where, {"inner_size": self.inner_size})


def check_memories(spec: ModelSpec, where: str) -> None:
    """BundleCorrupt for the memory of a block that has none such."""
    for b, block in enumerate(spec.blocks):
        if not isinstance(block, Gmu):
            continue
        owner = spec.blocks[block.values_of] if block.values_of < b else None
        if not isinstance(owner, S6) or owner.inner_size != block.inner_size:
            raise BundleCorrupt(
                f"{where}.blocks[{b}].values_of: block {block.values_of} is no s6 block before it with as many channels"
            )
