"""The state-space block of Mamba-2: a short convolution, then a recurrence with a state of fixed size.

For a row with parent state S: x, B, C = silu(conv(xBC)); dt = clip(softplus(dt + dt_bias)); S' = exp(dt a) S + dt x
B^T; y = S' C + d x, times silu(z), normed, then projected.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import ClassVar, Literal

from edgedec.errors import BundleCorrupt
from edgedec.spec._common import Norm, Shapes, norm_tensors, require_sizes


@dataclass(frozen=True)
class Ssm:
    """`n_groups` groups of heads share B and C; `norm_groups`: parts of a row that the gated norm treats apart,
    0: there is no norm, only the gate; `branch`: as of attention."""

    n_heads: int
    head_dim: int
    state_size: int
    n_groups: int = 1
    conv_size: int = 4
    dt_min: float = 0.0
    dt_max: float = 1e30
    norm_groups: int = 1
    proj_bias: bool = False
    norm: Norm = "rms"
    post_norm: Norm = "none"
    branch: bool = False
    kind: Literal["ssm"] = "ssm"
    after: ClassVar[Norm] = "none"

    @property
    def inner_size(self) -> int:
        return self.n_heads * self.head_dim

    @property
    def conv_dim(self) -> int:
        """Channels that are convolved: x, B and C."""
        return self.inner_size + 2 * self.n_groups * self.state_size

    @property
    def in_rows(self) -> int:
        """Outputs of the input projection: z, xBC, dt."""
        return self.inner_size + self.conv_dim + self.n_heads

    def tensors(self, hidden: int) -> Shapes:
        """Every weight of the block with its shape; `a` is -exp(A_log)."""
        shapes = self.matrices(hidden) | {
            "conv": (self.conv_dim, self.conv_size),
            "conv_bias": (self.conv_dim,),
            "dt_bias": (self.n_heads,),
            "a": (self.n_heads,),
            "d": (self.n_heads,),
        }
        if self.norm_groups:
            shapes["gate_norm"] = (self.inner_size,)
        shapes |= norm_tensors(self.norm, "norm", hidden) | norm_tensors(self.post_norm, "post_norm", hidden)
        if self.proj_bias:
            shapes |= {"in_proj_bias": (self.in_rows,), "out_proj_bias": (hidden,)}
        return shapes

    def matrices(self, hidden: int) -> Shapes:
        """The tensors that are quantized."""
        return {"in_proj": (self.in_rows, hidden), "out_proj": (hidden, self.inner_size)}

    def check(self, where: str) -> None:
        """Refuse numbers that no model can have."""
        names = ("n_heads", "head_dim", "state_size", "n_groups", "conv_size")
        require_sizes(where, {name: getattr(self, name) for name in names})
        require_sizes(where, {"norm_groups": self.norm_groups}, least=0)
        if self.n_heads % self.n_groups or self.inner_size % (self.norm_groups or 1):
            raise BundleCorrupt(f"{where}: {self.n_heads} heads do not share {self.n_groups} groups evenly")
        if not 0 <= self.dt_min <= self.dt_max < inf:
            raise BundleCorrupt(f"{where}.dt_min: {self.dt_min} to {self.dt_max} is no range")
