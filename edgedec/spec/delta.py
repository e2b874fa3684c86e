"""The gated delta rule (Gated DeltaNet, arXiv 2412.06464; Kimi Delta Attention, arXiv 2510.26692).

For a row with parent state S [key_dim, head_dim] of a head:

    v, k, q = silu(conv(vkq));  k = k / |k|;  q = q / |q| / sqrt(key_dim)       |x| = sqrt(sum x^2 + 1e-6)
    S' = exp(a softplus(g + dt_bias)) S;  S' = S' + k (beta (v - S'^T k))^T     beta = beta_scale * sigmoid(b)
    y = norm(S'^T q) * gate(z), a norm a head; then projected

v, k, q, z, b and g are projections of the row, and `a` is negative.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import ClassVar, Literal

from edgedec.errors import BundleCorrupt
from edgedec.spec._common import Norm, Shapes, norm_tensors, require_sizes


@dataclass(frozen=True)
class Delta:
    """n_groups: heads of keys and queries, each shared by as many heads of values. decay: one number a head, or one a
    channel of its key. rank: z and g are products of two matrices with so many values between them (0: of one matrix).
    eps: of the norm of y (0: the model's)."""

    n_heads: int
    head_dim: int
    key_dim: int
    n_groups: int
    conv_size: int = 4
    decay: Literal["head", "channel"] = "head"
    gate: Literal["silu", "sigmoid"] = "silu"
    rank: int = 0
    beta_scale: float = 1.0
    eps: float = 0.0
    norm: Norm = "rms"
    post_norm: Norm = "none"
    kind: Literal["delta"] = "delta"
    after: ClassVar[Norm] = "none"
    branch: ClassVar[bool] = False

    @property
    def inner_size(self) -> int:
        """Values of all heads."""
        return self.n_heads * self.head_dim

    @property
    def state_size(self) -> int:
        """Of each value of a head."""
        return self.key_dim

    @property
    def conv_dim(self) -> int:
        """Channels that are convolved: v, k and q."""
        return self.inner_size + 2 * self.n_groups * self.key_dim

    @property
    def decays(self) -> int:
        """Decays of all heads."""
        return self.n_heads * (self.key_dim if self.decay == "channel" else 1)

    @property
    def sections(self) -> tuple[int, int, int, int]:
        """Rows of the input projection: vkq, z, b, g."""
        return self.conv_dim, self.rank or self.inner_size, self.n_heads, self.rank or self.decays

    def tensors(self, hidden: int) -> Shapes:
        """Every weight of the block with its shape; `a` is -exp(A_log)."""
        shapes = self.matrices(hidden) | {
            "conv": (self.conv_dim, self.conv_size),
            "dt_bias": (self.decays,),
            "a": (self.n_heads,),
            "gate_norm": (self.head_dim,),
        }
        return shapes | norm_tensors(self.norm, "norm", hidden) | norm_tensors(self.post_norm, "post_norm", hidden)

    def matrices(self, hidden: int) -> Shapes:
        """The tensors that are quantized."""
        shapes: Shapes = {"in_proj": (sum(self.sections), hidden), "out_proj": (hidden, self.inner_size)}
        if self.rank:
            shapes |= {"gate_up": (self.inner_size, self.rank), "decay_up": (self.decays, self.rank)}
        return shapes

    def check(self, where: str) -> None:
        """Refuse numbers that no model can have."""
        names = ("n_heads", "head_dim", "key_dim", "n_groups", "conv_size")
        require_sizes(where, {name: getattr(self, name) for name in names})
        require_sizes(where, {"rank": self.rank}, least=0)
        if self.n_heads % self.n_groups:
            raise BundleCorrupt(f"{where}: {self.n_heads} heads do not share {self.n_groups} groups evenly")
        if not 0 < self.beta_scale < inf or not 0 <= self.eps < inf:
            raise BundleCorrupt(f"{where}: beta_scale {self.beta_scale} or eps {self.eps} is out of range")
