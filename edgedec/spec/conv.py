"""The gated short convolution (LFM2): B, C, x = W u; y = W' (C * conv(B * x)). Its state is the last inputs B * x of
the convolution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from edgedec.spec._common import Norm, Shapes, norm_tensors, require_sizes


@dataclass(frozen=True)
class Conv:
    """`inner_size` channels, each with a kernel of its own over the last `conv_size` rows of a text. bias: of the
    projections and of the convolution."""

    inner_size: int
    conv_size: int = 3
    bias: bool = False
    norm: Norm = "rms"
    post_norm: Norm = "none"
    kind: Literal["conv"] = "conv"
    after: ClassVar[Norm] = "none"
    branch: ClassVar[bool] = False
    # Besides its last inputs it keeps nothing.
    n_heads: ClassVar[int] = 0
    head_dim: ClassVar[int] = 0
    state_size: ClassVar[int] = 0

    @property
    def conv_dim(self) -> int:
        """Channels that are convolved."""
        return self.inner_size

    def tensors(self, hidden: int) -> Shapes:
        """Every weight of the block with its shape."""
        shapes = self.matrices(hidden) | {"conv": (self.inner_size, self.conv_size)}
        shapes |= norm_tensors(self.norm, "norm", hidden) | norm_tensors(self.post_norm, "post_norm", hidden)
        if self.bias:
            shapes |= {"in_proj_bias": (3 * self.inner_size,), "conv_bias": (self.inner_size,)}
            shapes |= {"out_proj_bias": (hidden,)}
        return shapes

    def matrices(self, hidden: int) -> Shapes:
        """The tensors that are quantized. in_proj: rows of B, then of C, then of x."""
        return {"in_proj": (3 * self.inner_size, hidden), "out_proj": (hidden, self.inner_size)}

    def check(self, where: str) -> None:
        """Refuse numbers that no model can have."""
        require_sizes(where, {"inner_size": self.inner_size, "conv_size": self.conv_size})
