"""A learned augmented residual (LAuReL, arXiv:2411.07501, its low-rank form; Gemma 3n): a block of a layer that reads
what attention beside it reads.

For n = norm(x): n + rms(right left n) * low_norm.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import ClassVar, Literal

from edgedec.errors import BundleCorrupt
from edgedec.spec._common import Norm, Shapes, norm_tensors, require_sizes


@dataclass(frozen=True)
class Laurel:
    """`scale`: a factor of the state after the sum with what all blocks side by side add."""

    rank: int
    scale: float = 1.0
    norm: Norm = "rms"
    post_norm: Norm = "none"
    kind: Literal["laurel"] = "laurel"
    after: ClassVar[Norm] = "none"
    branch: ClassVar[bool] = False

    def tensors(self, hidden: int) -> Shapes:
        """Every weight of the block with its shape; matrices are (out, in)."""
        shapes = self.matrices(hidden) | norm_tensors("rms", "low_norm", hidden)
        return shapes | norm_tensors(self.norm, "norm", hidden) | norm_tensors(self.post_norm, "post_norm", hidden)

    def matrices(self, hidden: int) -> Shapes:
        """The tensors that are quantized."""
        return {"left": (self.rank, hidden), "right": (hidden, self.rank)}

    def check(self, where: str) -> None:
        """Refuse numbers that no model can have."""
        require_sizes(where, {"rank": self.rank})
        if not 0 < self.scale < inf:
            raise BundleCorrupt(f"{where}.scale: {self.scale} is out of range")
