"""The opaque block: a whole layer whose arithmetic is inside a runtime's own graph. Only its cache is known.

A model is opaque in all its layers or in none: its embedding, its head and its weights are in the graph as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from edgedec.spec._common import Norm, Shapes, require_sizes


@dataclass(frozen=True)
class Opaque:
    """A layer that keeps keys and values of `n_kv_heads` heads."""

    n_kv_heads: int
    head_dim: int
    kind: Literal["opaque"] = "opaque"
    # Norms are inside the graph too.
    norm: ClassVar[Norm] = "none"
    post_norm: ClassVar[Norm] = "none"
    after: ClassVar[Norm] = "none"
    branch: ClassVar[bool] = False

    @property
    def kv_dim(self) -> int:
        return self.n_kv_heads * self.head_dim

    @property
    def kv_parts(self) -> int:
        """A key and a value."""
        return 2

    def tensors(self, hidden: int) -> Shapes:
        """No weight of it is known."""
        return {}

    def matrices(self, hidden: int) -> Shapes:
        """None that could be quantized."""
        return {}

    def check(self, where: str) -> None:
        """Refuse numbers that no model can have."""
        require_sizes(where, {"n_kv_heads": self.n_kv_heads, "head_dim": self.head_dim})
