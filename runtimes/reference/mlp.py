"""The feed-forward block in numpy."""

from __future__ import annotations

import numpy as np

from edgedec.runtimes.reference.numeric import Array, BlockWeights, activation
from edgedec.spec import Mlp


def run(block: Mlp, w: BlockWeights, x: Array) -> Array:
    """f(norm(x)) [n, hidden] of x [n, hidden]."""
    y = w.linear(w.norm(x, block.norm), block.up, block.bias)
    own = w.get("xielu") if block.activation == "xielu" else None
    if block.gated:
        gate, up = np.split(y, 2, axis=1)
        gate = cut_off(gate, block.cutoff) if block.sparsity else gate
        y = activation(gate, block.activation, own) * up
    else:
        y = activation(y, block.activation, own)
    return w.linear(w.norm(y, block.inner_norm, "inner_norm"), "down", block.bias)


def cut_off(gates: Array, spreads: float) -> Array:
    """What each of gates [n, inner] is above its row's mean and `spreads` of its standard deviations, or 0.

    gates 1 1 1 5, 1 spread -> 0 0 0 5 - (2 + 1.73) = 1.27
    """
    mean, spread = gates.mean(axis=1, keepdims=True), gates.std(axis=1, keepdims=True)
    return np.maximum(gates - (mean + spread * np.float32(spreads)), np.float32(0))
