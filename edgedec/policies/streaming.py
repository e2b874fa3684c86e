"""The first tokens and the latest ones (StreamingLLM): attention rests on the first few whatever they say.

Xiao et al. 2023. Here positions stay those of the text, so a text ends where the model's positions end; what is bounded
is memory and the time of a step. Between decisions the cache grows by `every` tokens.
"""

from __future__ import annotations

from edgedec.cache import Cache
from edgedec.policies import Chunk, PolicyHost
from edgedec.policies._budget import CacheBudget, Floats, budget_of
from edgedec.policies._eviction import Eviction, Looks, checked, looks_of

NEEDS = ("drop",)


def make(host: PolicyHost, budget: float = 1024, sinks: int = 4, every: int = 64) -> Streaming:
    """budget: tokens that stay, or a share of those read; sinks: of these the first; every: tokens between
    evictions."""
    checked("streaming", {"sinks": (sinks, 0, 1 << 16)})
    looks = looks_of("streaming", Looks(every=every), Looks(every=1))
    return Streaming(host, budget_of("streaming", budget), looks, sinks)


class Streaming(Eviction):
    chunks = 4  # the slots that stay are moved each time

    def __init__(self, host: PolicyHost, budget: CacheBudget, looks: Looks, sinks: int) -> None:
        super().__init__(host, budget, looks)
        self.sinks = sinks

    def chunk(self, cache: Cache, left: int, most: int) -> Chunk:
        if cache.length % (self.chunks * most) == 0:
            self.decide(cache)
        return Chunk(min(left, most - cache.length % most))

    def score(self, cache: Cache, block: int) -> Floats:
        return cache.positions(block).astype("float32")
