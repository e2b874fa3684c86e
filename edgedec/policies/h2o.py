"""Keeps the slots with the most accumulated attention, and the latest ones (H2O).

Zhang et al. 2023. Every row of a prompt is looked at, and of generated text the last `observe` rows before each
decision (all of them with observe = every - 1, at the price of drafts: a row that is looked at is run by itself). Half
of the budget is the latest slots'. Sums are of all heads of a block, or of each (`heads`).
"""

from __future__ import annotations

from edgedec.cache import Cache
from edgedec.policies import Chunk, PolicyFacts, PolicyHost
from edgedec.policies._budget import CacheBudget
from edgedec.policies._eviction import Eviction, Looks, heads_of, looks_of
from edgedec.policies._options import Budget, Every, Heads, Observe

FACTS = PolicyFacts(("drop", "attention_sums"), paper="H2O: Heavy-Hitter Oracle")


def make(
    host: PolicyHost, budget: Budget = 0.2, every: Every = 64, observe: Observe = 8, heads: Heads = "alike"
) -> H2O:
    looks = looks_of("h2o", Looks(every=every, observe=observe))
    return H2O(host, CacheBudget(budget), looks, heads_of("h2o", heads, host))


class H2O(Eviction):
    chunks = 4

    def chunk(self, cache: Cache, left: int, most: int) -> Chunk:
        if cache.length and cache.length % (self.chunks * most) == 0:
            self.decide(cache)
        plain = super().chunk(cache, left, most)
        return plain._replace(rows=min(plain.rows, most - cache.length % most))

    def kept_recent(self, keep: int) -> int:
        return keep // 2

    def decided(self) -> None:
        """Keep the recorded attention: the whole history counts."""
