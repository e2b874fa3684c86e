"""Merging of slots: keys and values of some slots are added, weighted, to those of slots that stay (D2O).

What a target keeps of its own is 1 less the weights that are merged into it; all that is merged is as it was before.

Worked example: merge(into=[3, 3], slots=[1, 2], weights=[0.25, 0.5]) -> slot 3 is 0.25 of itself, 0.25 of slot 1 and
0.5 of slot 2; slots 1 and 2 stay as they are, to be dropped.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UsageError

Array = NDArray[np.float32]
Ints = NDArray[np.int64]


class NoOffload:
    """For caches of runtimes that declare no `offload`."""

    def offload(self, block: int, pages: object, folder: str) -> None:
        raise UsageError(f"block {block}: this runtime puts no pages on disk")


class NoMerging(NoOffload):
    """For caches of runtimes that declare no `merge`."""

    def merge(self, block: int, into: object, slots: object, weights: object) -> None:
        raise UsageError(f"block {block}: this runtime declares no merge")

    def attach(self, rows: int) -> None:
        raise UsageError(f"{rows} rows: this runtime declares no attach")

    def keys(self, block: int, start: int = 0) -> Array:
        raise UsageError(f"block {block}: this runtime declares no merge, and gives no keys")

    def drop_by_head(self, block: int, slots: object) -> None:
        raise UsageError(f"block {block}: this runtime drops slots for all kv heads alike")


def checked_merge(
    into: Sequence[int] | Ints, slots: Sequence[int] | Ints, weights: object, kv_heads: int, held: int
) -> tuple[Ints, Ints, Array]:
    """The same as arrays: int64 [n], int64 [n], float32 [kv_heads, n]; UsageError unless they are a merge of a block
    that holds so many slots."""
    target, source = np.asarray(into, np.int64), np.asarray(slots, np.int64)
    given = np.asarray(weights, np.float32)
    if given.shape not in ((len(source),), (kv_heads, len(source))) or target.shape != source.shape:
        shapes = f"into {list(target.shape)}, slots {list(source.shape)}, weights {list(given.shape)}"
        raise UsageError(f"merge of {shapes}: give one of each for every slot, or weights [{kv_heads}, slots]")
    both = np.concatenate([target, source])
    if len(both) and not (both.min() >= 0 and both.max() < held):
        raise UsageError(f"merge of slots {both.min()} to {both.max()}: the block holds {held}")
    if len(np.intersect1d(target, source)):
        raise UsageError(f"merge of slot {np.intersect1d(target, source)[0]}: something else is merged into it")
    if not np.isfinite(given).all():
        raise UsageError("merge: weights must be finite")
    return target, source, np.ascontiguousarray(np.broadcast_to(given, (kv_heads, len(source))))


def merged(values: Array, into: Ints, slots: Ints, weights: Array) -> tuple[Ints, Array]:
    """The targets, ascending, and what they hold after the merge [kv_heads, targets, width]. values [kv_heads, slots,
    width]."""
    targets, at = np.unique(into, return_inverse=True)
    share = np.zeros((len(values), len(targets), len(slots)), np.float32)
    share[:, at, np.arange(len(slots))] = weights
    kept = 1 - share.sum(axis=2, keepdims=True)
    return targets, kept * values[:, targets] + share @ values[:, slots]
