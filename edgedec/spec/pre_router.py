"""The pre-router (Read-ME, NeurIPS 2024, VITA-Group/READ-ME): a small causal transformer of one layer that reads token
ids alone and chooses one expert of each token for all mixtures of a model, before any of these runs.

For a token's row of the table `lookup`, e: x = e + attention(rms e); x = x + down silu(up rms x); the expert is the
largest of out rms x. All matrices have biases, and the authors divide scores by 1, not by the root of head_dim.

It is a block of the stack that adds nothing to the state: its stream of `size` values is its own, begins and ends in
the block, and what is left of it is a number a row, which mixtures whose `router` is "given" read (`Moe.given_by`). So
its keys and values are slots of the cache like those of any attention: what trees, forks, sessions and cut prompts do
with slots holds for them. Blocks of other kinds before the stack would have to share its state, whose width and norms
are the model's; a second model would need a second cache beside every cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from edgedec.errors import BundleCorrupt
from edgedec.spec._common import Shapes, require_sizes
from edgedec.spec.attention import Attention
from edgedec.spec.moe import Moe

if TYPE_CHECKING:
    from edgedec.spec import ModelSpec


@dataclass(frozen=True)
class PreRouter(Attention):
    """Of the fields of attention it has heads, scale and rope. n_experts: that it chooses one of."""

    n_experts: int = 0
    qkv_bias: bool = True
    o_bias: bool = True
    kind: Literal["pre_router"] = "pre_router"  # type: ignore[assignment]

    @property
    def size(self) -> int:
        """Values of its stream: of a token's row of the table."""
        return self.q_dim

    def tensors(self, hidden: int) -> Shapes:
        """Every weight of the block with its shape, but for the table; matrices are (out, in)."""
        n = self.size
        norms: Shapes = {"norm": (n,), "up_norm": (n,), "out_norm": (n,)}
        biases: Shapes = {"qkv_bias": (3 * n,), "o_bias": (n,), "up_bias": (n,), "down_bias": (n,)}
        return (
            self.matrices(hidden) | norms | biases | {"router": (self.n_experts, n), "router_bias": (self.n_experts,)}
        )

    def matrices(self, hidden: int) -> Shapes:
        """The tensors that are quantized."""
        n = self.size
        return {"qkv": (3 * n, n), "o": (n, n), "up": (n, n), "down": (n, n)}

    def check(self, where: str) -> None:
        """Refuse numbers that no model can have."""
        super().check(where)
        require_sizes(where, {"n_experts": self.n_experts})
        plain = PreRouter(self.n_heads, self.n_heads, self.head_dim, self.scale, self.rope, n_experts=self.n_experts)
        if self != plain:
            raise BundleCorrupt(f"{where}: a pre_router has heads, scale, rope and n_experts, and nothing else")


def check_given(spec: ModelSpec, where: str) -> None:
    """BundleCorrupt for experts that no block before chooses, and for a choice in a model that is given no tokens."""
    for b, block in enumerate(spec.blocks):
        if isinstance(block, PreRouter) and (spec.output is not None or not spec.causal):
            raise BundleCorrupt(f"{where}.output: a text encoder with a pre_router, which reads tokens")
        if not isinstance(block, Moe) or block.router != "given":
            continue
        owner = spec.blocks[block.given_by] if block.given_by < b else None
        if not isinstance(owner, PreRouter) or owner.n_experts != block.n_experts:
            raise BundleCorrupt(
                f"{where}.blocks[{b}].given_by: block {block.given_by} is no pre_router before it of as many experts"
            )
