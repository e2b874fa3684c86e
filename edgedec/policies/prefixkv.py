"""Keeps in each layer what carries the same share of its attention (PrefixKV).

Wang et al. 2024. In each block the slots are ranked by what they were paid; the first of them that carry the share `p`
of the block's attention stay. `p` is the same in all blocks, found by binary search so that the slots add up
to the budget: a block whose attention is spread keeps more, one that looks at few tokens keeps few.

From the abstract: the global configuration of prefixes and the binary search. Ours: what a slot is paid is what the
prompt's last rows pay (`snapkv`), where the paper's models see images.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgedec.cache import Cache
from edgedec.policies import PolicyFacts, PolicyHost
from edgedec.policies._budget import LEAST, CacheBudget
from edgedec.policies._eviction import Looks, looks_of
from edgedec.policies._options import Every, MeanBudget, Observe, Pool, Window
from edgedec.policies.snapkv import SnapKV

_ROUNDS = 40

FACTS = PolicyFacts(("drop", "attention_sums"), paper="PrefixKV")


def make(
    host: PolicyHost,
    budget: MeanBudget = 0.2,
    window: Window = 32,
    pool: Pool = 7,
    every: Every = 0,
    observe: Observe = 8,
) -> PrefixKV:
    looks = looks_of("prefixkv", Looks(window, every, observe, pool))
    return PrefixKV(host, CacheBudget(budget), looks)


class PrefixKV(SnapKV):
    def shares(self, cache: Cache) -> dict[int, int]:
        keep = self.budget.of(cache.length)
        if keep >= cache.length:
            return dict.fromkeys(self.spec.attention, keep)
        least = min(keep, max(LEAST, self.sinks + self.kept_recent(keep)))
        carried = {b: shares_carried(self.score(cache, b)) for b in self.spec.attention}
        return prefixes(carried, keep * len(carried), least)

    def most_kept(self, length: int) -> int:
        return len(self.spec.attention) * self.budget.of(length)


def shares_carried(scores: NDArray[np.float32]) -> NDArray[np.float64]:
    """The share of the whole that the first 1, 2, ... slots carry, the most paid first [slots]."""
    ranked = np.cumsum(np.sort(scores.astype(np.float64))[::-1])
    return ranked / ranked[-1] if len(ranked) and ranked[-1] > 0 else np.linspace(0, 1, len(ranked))


def prefixes(carried: dict[int, NDArray[np.float64]], total: int, least: int) -> dict[int, int]:
    """The number of slots of each block so that all blocks keep the same share of attention: `total` slots at most,
    `least` each.

    a carries .5 .8 1, b carries .9 1 1, total 3, least 1 -> a 2, b 1: 0.8 of each
    """

    def sizes(p: float) -> dict[int, int]:
        return {b: max(least, int(np.searchsorted(c, p - 1e-12)) + 1 if p > 0 else 0) for b, c in carried.items()}

    low, high = 0.0, 1.0
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(sizes(middle).values()) <= total else (low, middle)
    return sizes(low)
