"""Keeps more in the first layers and less in the last (PyramidKV).

Cai et al. 2024. The same choice as snapkv's in every block; the budgets fall in a line from the first attention block
to the last, and add up to the same as equal ones. `slope`: how many times the mean the first one has, up to 2.
"""

from __future__ import annotations

from math import ceil
from typing import Annotated

import numpy as np

from edgedec.cache import Cache
from edgedec.plugins import Opt
from edgedec.policies import PolicyFacts, PolicyHost
from edgedec.policies._budget import LEAST, CacheBudget
from edgedec.policies._eviction import Looks, looks_of
from edgedec.policies._options import Every, MeanBudget, Observe, Pool, Window
from edgedec.policies.snapkv import SnapKV

FACTS = PolicyFacts(("drop", "attention_sums"), paper="PyramidKV")


def make(
    host: PolicyHost,
    budget: MeanBudget = 0.2,
    slope: Annotated[float, Opt("Budget of the first block over the mean; 1: all blocks have the same.", 1, 2)] = 1.9,
    window: Window = 32,
    pool: Pool = 7,
    every: Every = 0,
    observe: Observe = 8,
) -> PyramidKV:
    looks = looks_of("pyramidkv", Looks(window, every, observe, pool))
    return PyramidKV(host, CacheBudget(budget), looks, slope)


class PyramidKV(SnapKV):
    def __init__(self, host: PolicyHost, budget: CacheBudget, looks: Looks, slope: float) -> None:
        super().__init__(host, budget, looks)
        self._slope = slope

    def shares(self, cache: Cache) -> dict[int, int]:
        keep, blocks = self.budget.of(cache.length), list(self.spec.attention)
        if keep >= cache.length:
            return dict.fromkeys(blocks, keep)
        line = np.linspace(self._slope, 2 - self._slope, len(blocks)) * keep
        return dict(zip(blocks, level(line, cache.length), strict=True))

    def most_kept(self, length: int) -> int:
        return ceil(self._slope * self.budget.of(length))


def level(wanted: np.ndarray[tuple[int], np.dtype[np.float64]], most: int) -> list[int]:
    """Whole numbers near these, none above `most` or below the least; the excess of one is distributed to the others.

    [30, 20, 10], most 25 -> 25 22 12
    """
    total, found = float(wanted.sum()), np.clip(wanted, LEAST, most)
    for _ in range(len(found)):
        open_ = (found < most) if found.sum() < total else (found > LEAST)
        if abs(found.sum() - total) < 1 or not open_.any():
            break
        found[open_] += (total - found.sum()) / open_.sum()
        found = np.clip(found, LEAST, most)
    return [int(value) for value in found]
