"""The low-rank residual of Gemma 3n in numpy."""

from __future__ import annotations

from edgedec.runtimes.reference.numeric import Array, BlockWeights, rms_norm
from edgedec.spec import Laurel


def run(block: Laurel, w: BlockWeights, x: Array) -> Array:
    """f(norm(x)) [n, hidden] of x [n, hidden]."""
    x = w.norm(x, block.norm)
    low = w.linear(w.linear(x, "left"), "right")
    return x + rms_norm(low, w.get("low_norm"), w.spec.norm_eps)
