"""The feed-forward block: gated (activation(gate) * up) or plain (activation(up))."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from edgedec.spec._common import Activation, Norm, Shapes, UpMatrix, norm_tensors, require_sizes


@dataclass(frozen=True)
class Mlp(UpMatrix):
    """Two matrices with an activation between them; gated ones have gate and up in one. xielu has four numbers of its
    own; `inner_norm`: of what the last matrix reads; `branch`: as of attention; `state_scale`: the state is multiplied
    by a learned number after the sum."""

    inner_size: int
    gated: bool = True
    activation: Activation = "silu"
    bias: bool = False
    norm: Norm = "rms"
    post_norm: Norm = "none"
    after: Norm = "none"
    inner_norm: Norm = "none"
    branch: bool = False
    state_scale: bool = False
    kind: Literal["mlp"] = "mlp"

    def tensors(self, hidden: int) -> Shapes:
        """Every weight of the block with its shape; matrices are (out, in)."""
        shapes = self.matrices(hidden)
        shapes |= norm_tensors(self.norm, "norm", hidden) | norm_tensors(self.post_norm, "post_norm", hidden)
        shapes |= norm_tensors(self.after, "after_norm", hidden)
        shapes |= norm_tensors(self.inner_norm, "inner_norm", self.inner_size)
        if self.activation == "xielu":
            shapes["xielu"] = (4,)
        if self.state_scale:
            shapes["state_scale"] = (1,)
        if self.bias:
            shapes |= {f"{self.up}_bias": (self.up_rows,), "down_bias": (hidden,)}
        return shapes

    def matrices(self, hidden: int) -> Shapes:
        """The tensors that are quantized."""
        return {self.up: (self.up_rows, hidden), "down": (hidden, self.inner_size)}

    def check(self, where: str) -> None:
        """Refuse numbers that no model can have."""
        require_sizes(where, {"inner_size": self.inner_size})
