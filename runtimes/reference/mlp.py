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
        y = activation(gate, block.activation, own) * up
    else:
        y = activation(y, block.activation, own)
    return w.linear(w.norm(y, block.inner_norm, "inner_norm"), "down", block.bias)
