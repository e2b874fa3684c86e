"""Evicts slots, merges them into similar ones, and gives blocks with flat attention more room (D2O).

Wan et al. 2024. Two decisions. By block: where attention is spread over many slots more of them stay, where it gathers
on few, fewer (here by the number of slots that it effectively rests on, 1 / sum p^2). By slot: those stay that were
paid most, and the latest. Of the others, each is compared with those that stay, by the cosine of their keys: where the
best match is as good as the running mean of matches (`ema`), it is merged into it instead of forgotten, by weights
exp(similarity) against e for the slot that stays.

From the abstract: both decisions, and a threshold of similarity that evicted tokens must reach to be merged. Ours: the
measure of flatness, its bounds of half and twice the mean, and that nothing is merged into the first slots.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, e
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from edgedec.cache import Cache
from edgedec.errors import SessionError
from edgedec.plugins import Opt
from edgedec.policies import PolicyFacts, PolicyHost, PolicyState
from edgedec.policies._budget import CacheBudget, Ints, dropped
from edgedec.policies._eviction import Eviction, Looks, looks_of
from edgedec.policies._options import Every, MeanBudget, Observe
from edgedec.policies.pyramidkv import level

# A block keeps from half the mean to twice as much.
_LEAST, _MOST = 0.5, 2.0
# Evicted slots that are compared at once.
_ROWS = 1024

FACTS = PolicyFacts(("drop", "merge", "attention_sums"), paper="D2O: Dynamic Discriminative Operations")


def make(
    host: PolicyHost,
    budget: MeanBudget = 0.2,
    every: Every = 64,
    observe: Observe = 8,
    ema: Annotated[float, Opt("Weight of the latest matches in the running mean.", above=0, high=1)] = 0.7,
) -> D2O:
    looks = looks_of("d2o", Looks(every=every, observe=observe))
    return D2O(host, CacheBudget(budget), looks, ema)


class D2O(Eviction):
    def __init__(self, host: PolicyHost, budget: CacheBudget, looks: Looks, ema: float) -> None:
        super().__init__(host, budget, looks)
        self._ema = ema
        self._threshold: dict[int, float] = {}

    def shares(self, cache: Cache) -> dict[int, int]:
        keep, blocks = self.budget.of(cache.length), list(self.spec.attention)
        held = {b: cache.slots(b) for b in blocks}
        if sum(held.values()) <= keep * len(blocks):
            return held  # also where it was decided before: what is left is spread differently
        spread = np.array([spread_of(self.score(cache, b)) for b in blocks])
        wanted = np.clip(spread / max(float(spread.mean()), 1e-9), _LEAST, _MOST)
        return dict(zip(blocks, level(wanted / wanted.mean() * keep, cache.length), strict=True))

    def most_kept(self, length: int) -> int:
        n = len(self.spec.attention)
        fullest = _MOST / ((_MOST + (n - 1) * _LEAST) / n)  # one block of `_MOST`, the others of `_LEAST`
        return ceil(fullest * self.budget.of(length))

    def kept_recent(self, keep: int) -> int:
        return keep // 2

    def evict(self, cache: Cache, block: int, keep: int) -> None:
        gone = dropped(self.score(cache, block), keep, self.sinks, self.kept_recent(keep))
        into, slots, weights = self._matches(cache, block, gone)
        if len(slots):
            cache.merge(block, into.tolist(), slots.tolist(), weights)
        super().evict(cache, block, keep)

    def _matches(self, cache: Cache, block: int, gone: Ints) -> tuple[Ints, Ints, NDArray[np.float32]]:
        """The evicted slots that are merged, their target slots, and the weights."""
        stay = np.setdiff1d(np.arange(self.sinks, cache.slots(block)), gone)
        best, similar = nearest(cache.keys(block), gone, stay)
        if not len(similar):
            return best, gone[:0], similar
        now = float(similar.mean())
        before = self._threshold.get(block, now)
        self._threshold[block] = self._ema * now + (1 - self._ema) * before
        good = similar >= before
        return best[good], gone[good], merge_weights(best[good], similar[good])

    def decided(self) -> None:
        """Keep the recorded attention: the whole history counts."""

    def reset(self) -> None:
        super().reset()
        self._threshold = {}

    def fork(self) -> D2O:
        twin = super().fork()
        assert isinstance(twin, D2O)
        twin._threshold = dict(self._threshold)
        return twin

    def state(self) -> PolicyState:
        kept = {f"threshold.{b}": np.array([value], np.float64) for b, value in self._threshold.items()}
        return {**super().state(), **kept}

    def restore(self, state: Mapping[str, NDArray[Any]], cache: Cache) -> None:
        found: dict[int, float] = {}
        for name in [name for name in state if name.startswith("threshold.")]:
            value, block = state[name], name.partition(".")[2]
            b = int(block) if block.isdigit() else -1
            if b not in self.spec.attention or value.shape != (1,) or not np.isfinite(value).all():
                raise SessionError(f"{name}: the saved state is not of cache policy {self.name}")
            found[b] = float(value[0])
        super().restore({name: array for name, array in state.items() if name.startswith("scores.")}, cache)
        if len(found) + len(self._scores) != len(state):
            raise SessionError(f"{min(state)}: the saved state is not of cache policy {self.name}")
        self._threshold = found


def spread_of(scores: NDArray[np.float32]) -> float:
    """The effective number of slots with attention: 1 / sum p^2.

    4 4 4 4 -> 4, 9 0 0 0 -> 1
    """
    total = float(scores.sum(dtype=np.float64))
    if total <= 0:
        return float(max(len(scores), 1))
    return 1.0 / float(np.square(scores.astype(np.float64) / total).sum())


def nearest(keys: NDArray[np.float32], gone: Ints, stay: Ints) -> tuple[Ints, NDArray[np.float32]]:
    """For each evicted slot the remaining slot with the most similar key, and the cosine over all heads. keys
    [n_kv_heads, slots, head_dim]."""
    if not len(stay) or not len(gone):
        return np.zeros(0, np.int64), np.zeros(0, np.float32)
    flat = keys.transpose(1, 0, 2).reshape(keys.shape[1], -1)
    unit = flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-6)
    kept, best, similar = unit[stay].T, list[Ints](), list[NDArray[np.float32]]()
    for at in range(0, len(gone), _ROWS):
        cosines = unit[gone[at : at + _ROWS]] @ kept
        choice = cosines.argmax(axis=1)
        best.append(stay[choice])
        similar.append(cosines[np.arange(len(choice)), choice])
    return np.concatenate(best), np.concatenate(similar)


def merge_weights(into: Ints, similar: NDArray[np.float32]) -> NDArray[np.float32]:
    """exp(similarity) of each merged slot over that of all that go to the same one, with e for that one itself."""
    power = np.exp(similar.astype(np.float64))
    targets, at = np.unique(into, return_inverse=True)
    total = e + np.bincount(at, power, len(targets))
    return (power / total[at]).astype(np.float32)
