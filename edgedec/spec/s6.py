"""The selective state space of Mamba-1 (arXiv:2312.00752): every channel has a time step and decays of its own.

For a row with parent state S [inner, state_size]: x, z = in_proj(u); x = silu(conv(x)); low, B, C = x_proj(x), each
normed where the model does so (FalconMamba, Jamba); dt = softplus(dt_proj(low) + dt_bias) [inner]; S' = exp(dt a) S +
(dt x) B^T; y = S' C + d x; out_proj(y silu(z)).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from edgedec.errors import BundleCorrupt
from edgedec.spec._common import Norm, Shapes, norm_tensors, require_sizes


@dataclass(frozen=True)
class S6:
    """`dt_rank`: values that the time steps of all channels are made of. part_norm: of these, of B and of C, each by
    its root mean square ("plain": without weights), with part_eps."""

    inner_size: int
    state_size: int
    dt_rank: int
    conv_size: int = 4
    proj_bias: bool = False
    part_norm: Literal["none", "plain", "rms"] = "none"
    part_eps: float = 1e-6
    norm: Norm = "rms"
    post_norm: Norm = "none"
    kind: Literal["s6"] = "s6"
    after: ClassVar[Norm] = "none"
    branch: ClassVar[bool] = False
    # Its state is that of one head as wide as all channels.
    n_heads: ClassVar[int] = 1

    @property
    def head_dim(self) -> int:
        return self.inner_size

    @property
    def conv_dim(self) -> int:
        """Channels that are convolved: x alone."""
        return self.inner_size

    @property
    def parts(self) -> int:
        """Outputs of `x_proj`: low, B, C."""
        return self.dt_rank + 2 * self.state_size

    def tensors(self, hidden: int) -> Shapes:
        """Every weight of the block with its shape; `a` is -exp(A_log)."""
        shapes = self.matrices(hidden) | {
            "conv": (self.inner_size, self.conv_size),
            "conv_bias": (self.inner_size,),
            "dt_bias": (self.inner_size,),
            "a": (self.inner_size, self.state_size),
            "d": (self.inner_size,),
        }
        shapes |= norm_tensors(self.norm, "norm", hidden) | norm_tensors(self.post_norm, "post_norm", hidden)
        if self.part_norm == "rms":
            shapes |= {"dt_norm": (self.dt_rank,), "b_norm": (self.state_size,), "c_norm": (self.state_size,)}
        if self.proj_bias:
            shapes |= {"in_proj_bias": (2 * self.inner_size,), "out_proj_bias": (hidden,)}
        return shapes

    def matrices(self, hidden: int) -> Shapes:
        """The tensors that are quantized."""
        return {
            "in_proj": (2 * self.inner_size, hidden),
            "x_proj": (self.parts, self.inner_size),
            "dt_proj": (self.inner_size, self.dt_rank),
            "out_proj": (hidden, self.inner_size),
        }

    def check(self, where: str) -> None:
        """Refuse numbers that no model can have."""
        names = ("inner_size", "state_size", "dt_rank", "conv_size")
        require_sizes(where, {name: getattr(self, name) for name in names})
        if not 0 < self.part_eps < 1:
            raise BundleCorrupt(f"{where}.part_eps: {self.part_eps} is out of range")
