"""Heavy hitters (H2O): of the slots those stay that were paid most so far, and the latest ones.

Zhang et al. 2023. Every row of a prompt is looked at, and of generated text the last `observe` rows before each
decision (all of them with observe = every - 1, at the price of drafts: a row that is looked at is run by itself). Half
of the budget is the latest slots'. Sums are of all heads of a block, or of each (`heads`).
"""

from __future__ import annotations

from edgedec.cache import Cache
from edgedec.policies import Chunk, PolicyHost
from edgedec.policies._budget import budget_of
from edgedec.policies._eviction import Eviction, Looks, heads_of, looks_of

NEEDS = ("drop", "attention_sums")


def make(host: PolicyHost, budget: float = 0.2, every: int = 64, observe: int = 8, heads: str = "alike") -> H2O:
    """budget: a share of the tokens, or a number; every: tokens between decisions; observe: rows before each that are
    looked at; heads: as of snapkv."""
    looks = looks_of("h2o", Looks(every=every, observe=observe))
    return H2O(host, budget_of("h2o", budget), looks, heads_of("h2o", heads, host))


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
        """All that was ever paid counts."""
