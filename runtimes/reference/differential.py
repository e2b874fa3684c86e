"""Pairs of heads of differential attention in numpy."""

from __future__ import annotations

import numpy as np

from edgedec.runtimes.reference.numeric import Array, BlockWeights, rms_norm
from edgedec.spec import Attention, SharedAttention


def widened(q: Array, n_heads: int) -> Array:
    """q [n, n_heads * half] -> [n, n_heads, 2 * half]: the first of a pair scores the first half of a key."""
    halves = q.reshape(len(q), n_heads, -1)
    wide = np.zeros((*halves.shape[:2], 2, halves.shape[2]), np.float32)
    for part in range(2):
        wide[:, part::2, part] = halves[:, part::2]
    return wide.reshape(len(q), n_heads, -1)


def subtracted(block: Attention | SharedAttention, w: BlockWeights, y: Array) -> Array:
    """y [n, n_heads * head_dim], what each head attends to -> [n, n_heads / 2 * head_dim]."""
    pairs = y.reshape(len(y), -1, 2, block.head_dim)
    difference = pairs[:, :, 0] - factor(block, w) * pairs[:, :, 1]
    return rms_norm(difference, w.get("pair_norm"), w.spec.norm_eps).reshape(len(y), -1)


def factor(block: Attention | SharedAttention, w: BlockWeights) -> np.float32:
    """What the second head of each pair is multiplied by."""
    rows = w.get("lambdas").astype(np.float64).reshape(4, -1)
    return np.float32(np.exp(rows[0] @ rows[1]) - np.exp(rows[2] @ rows[3]) + block.differential)
