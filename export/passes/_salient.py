"""Which inputs of a matrix keep 4 bits in PTQ1.61, and what these are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgedec.runtimes.reference.numeric import Array
from edgedec.spec import Attention, ModelSpec

_SHARE = 0.2
_HIGH = 15  # the largest code of 4 bits


def kept_inputs(k: int) -> int:
    """How many of k inputs keep 4 bits, where no two have one size."""
    return int(_SHARE * k) + 1


def salient(most: Array) -> NDArray[np.bool_]:
    """The inputs that keep 4 bits: those no smaller than the one that a fifth of them exceeds [k].

    >>> salient(np.array([1, 9, 3, 2, 5], np.float32)).tolist()
    [False, True, False, False, True]
    """
    return np.asarray(most >= np.sort(most)[::-1][kept_inputs(len(most)) - 1])


def four_bits(weights: Array) -> Array:
    """The matrix in 16 steps from the least weight of each row, or zero, to the largest."""
    low, high = np.minimum(weights.min(axis=1), 0), np.maximum(weights.max(axis=1), 0)
    steps = np.where(high > low, (high - low) / _HIGH, np.float32(2 / _HIGH))[:, None]
    zeros = np.rint(-low[:, None] / steps)
    found: Array = steps * (np.clip(np.rint(weights / steps) + zeros, 0, _HIGH) - zeros)
    return found.astype(np.float32)


def row_parts(spec: ModelSpec, name: str) -> tuple[int, ...]:
    """The rows of the matrices that a bundle's matrix is made of."""
    b, own = name.split(".")[1:]
    block, n = spec.blocks[int(b)], spec.tensors()[name][0]
    if own == "qkv" and isinstance(block, Attention):
        return (block.q_dim, block.kv_dim, block.kv_dim)
    return (n // 2, n // 2) if own == "gate_up" else (n,)
