"""The feed-forward block: gated (activation(gate) * up) or plain (activation(up))."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from edgedec.errors import BundleCorrupt
from edgedec.spec._common import Activation, Norm, Shapes, UpMatrix, norm_tensors, require_sizes


@dataclass(frozen=True)
class Mlp(UpMatrix):
    """Two matrices with an activation between them; gated ones have gate and up in one. xielu has four numbers of its
    own; `inner_norm`: of what the last matrix reads; `branch`: as of attention; `state_scale`: the state is multiplied
    by a learned number after the sum. `sparsity`: this share of gates is cut off before the activation, by the quantile
    of a normal distribution with the mean and the spread of the row's gates (Gemma 3n; 0.0: none). `feeds`: as of
    attention."""

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
    sparsity: float = 0.0
    feeds: bool = False
    kind: Literal["mlp"] = "mlp"

    @property
    def cutoff(self) -> float:
        """Spreads above the mean of a row's gates below which they are cut off; of a block with `sparsity`."""
        return NormalDist().inv_cdf(self.sparsity)

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
        if not 0 <= self.sparsity < 1 or (self.sparsity and not self.gated):
            raise BundleCorrupt(f"{where}.sparsity: {self.sparsity} is out of range, or there are no gates")
