"""The gated memory unit in numpy."""

from __future__ import annotations

from edgedec.runtimes.reference.numeric import Array, BlockWeights, activation
from edgedec.spec import Gmu


def run(block: Gmu, w: BlockWeights, x: Array, memory: Array) -> Array:
    """f(norm(x)) [count, hidden]. memory [count, inner_size]: what the block it reads made of the rows."""
    gate = w.linear(w.norm(x, block.norm), "gate", block.bias)
    return w.linear(memory * activation(gate, "silu"), "out", block.bias)
