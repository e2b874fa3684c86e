"""The budget of a block in slots, and the choice of the slots to drop."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

# The least number of slots for usable attention.
LEAST = 8


@dataclass(frozen=True)
class CacheBudget:
    """A share of the tokens read so far (up to 1), or a number of slots."""

    value: float

    def of(self, length: int) -> int:
        """Slots of a block after `length` tokens."""
        return max(LEAST, ceil(self.value * length) if self.value <= 1 else int(self.value))

    def __str__(self) -> str:
        return f"{self.value:.0%} of the tokens" if self.value <= 1 else f"{int(self.value)} tokens"


def dropped(scores: Floats, keep: int, sinks: int, recent: int) -> Ints:
    """The slots to drop so that `keep` stay, ascending: never the first `sinks` and the last `recent`, of the others
    those with the lowest scores, the oldest among equals.

        scores 9 1 5 3 4 0, keep 4, sinks 1, recent 1 -> 1 3
    """
    n = len(scores)
    gone = n - keep
    if gone <= 0:
        return np.zeros(0, np.int64)
    sinks = min(sinks, keep)
    recent = min(recent, keep - sinks)
    order = np.argsort(scores[sinks : n - recent], kind="stable")[:gone]
    return np.sort(order).astype(np.int64) + sinks


def by_heads(paid: Floats, width: int) -> Floats:
    """paid [heads, slots], each head smoothed as by `pooled` -> [heads, slots]."""
    return np.stack([pooled(head[None], width) for head in paid])


def pooled(paid: Floats, width: int) -> Floats:
    """paid [heads, slots] smoothed over `width` neighbours (the mean), the heads added up -> [slots]. Neighbours of a
    slot with high attention belong to it (SnapKV)."""
    total = paid.sum(axis=0, dtype=np.float64)
    if width > 1 and len(total):
        half = width // 2
        sums = np.cumsum(np.concatenate([[0.0], total]))
        at = np.arange(len(total))
        low, high = np.maximum(at - half, 0), np.minimum(at + half + 1, len(total))
        total = (sums[high] - sums[low]) / (high - low)
    return total.astype(np.float32)
