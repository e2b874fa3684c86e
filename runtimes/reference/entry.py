"""What enters the first block: embeddings of tokens with learned positions, normed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from edgedec.runtimes.reference.numeric import Array, normed
from edgedec.spec import ModelSpec


def entered(spec: ModelSpec, x: Array, positions: NDArray[np.int64], get: Callable[[str], Array]) -> Array:
    """x [n, hidden], the scaled embeddings of tokens at `positions`, as the first block reads it. get: a tensor."""
    entry = spec.entry
    if entry is None:
        return x
    if entry.positions:
        x = x + get("positions")[positions]
    if entry.norm == "none":
        return x
    bias = get("entry_norm_bias") if entry.norm == "layer" else None
    return normed(x, entry.norm, get("entry_norm"), bias, spec.norm_eps)
