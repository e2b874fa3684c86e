"""The mixture-of-experts block: a router sends each row to a few of many gated MLPs.

router: "softmax" weighs all experts and takes the k likeliest; "softmax_topk" takes the k largest logits and weighs
these; "sigmoid" weighs each by itself and chooses by weight + router_bias. `normalize`: weights of the chosen sum to 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from edgedec.errors import BundleCorrupt
from edgedec.spec._common import Activation, Norm, Shapes, norm_tensors, require_sizes

# An expert is whole groups of the packed layout.
LANES = 16


@dataclass(frozen=True)
class Moe:
    """`scale` multiplies all weights of routed experts; `shared_size`: inner size of an expert that every row passes,
    its output times sigmoid(x . shared_gate) if `shared_gate`."""

    n_experts: int
    top_k: int
    inner_size: int
    router: Literal["softmax", "softmax_topk", "sigmoid"] = "softmax"
    normalize: bool = True
    scale: float = 1.0
    router_bias: bool = False
    shared_size: int = 0
    shared_gate: bool = False
    activation: Activation = "silu"
    norm: Norm = "rms"
    post_norm: Norm = "none"
    kind: Literal["moe"] = "moe"

    def tensors(self, hidden: int) -> Shapes:
        """Every weight of the block with its shape. Experts are stacked: rows e * 2 * inner_size on are expert e's
        gate and up."""
        shapes = self.matrices(hidden) | {"router": (self.n_experts, hidden)}
        shapes |= norm_tensors(self.norm, "norm", hidden) | norm_tensors(self.post_norm, "post_norm", hidden)
        if self.router_bias:
            shapes["router_bias"] = (self.n_experts,)
        if self.shared_gate:
            shapes["shared_gate"] = (1, hidden)
        return shapes

    def matrices(self, hidden: int) -> Shapes:
        """The tensors that are quantized; of the experts' a row reads `top_k` parts."""
        shapes: Shapes = {
            "gate_up": (self.n_experts * 2 * self.inner_size, hidden),
            "down": (self.n_experts * hidden, self.inner_size),
        }
        if self.shared_size:
            shapes |= {"shared_gate_up": (2 * self.shared_size, hidden), "shared_down": (hidden, self.shared_size)}
        return shapes

    def check(self, where: str) -> None:
        """Refuse numbers that no model can have."""
        require_sizes(where, {name: getattr(self, name) for name in ("n_experts", "top_k", "inner_size")})
        require_sizes(where, {"shared_size": self.shared_size}, least=0)
        if self.top_k > self.n_experts:
            raise BundleCorrupt(f"{where}.top_k: {self.top_k} of {self.n_experts} experts")
        if self.router_bias and self.router != "sigmoid":
            raise BundleCorrupt(f"{where}.router_bias: only a sigmoid router has one")
        if self.shared_gate and not self.shared_size:
            raise BundleCorrupt(f"{where}.shared_gate: there is no shared expert")
        if 2 * self.inner_size % LANES:
            raise BundleCorrupt(f"{where}.inner_size: twice {self.inner_size} is not a multiple of {LANES}")
