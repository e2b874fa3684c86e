"""Keeps the first tokens and the latest ones (StreamingLLM).

Xiao et al. 2023. Here positions stay those of the text, so a text ends where the model's positions end; what is bounded
is memory and the time of a step. Between decisions the cache grows by `every` tokens.
"""

from __future__ import annotations

from typing import Annotated

from edgedec.cache import Cache
from edgedec.plugins import Opt
from edgedec.policies import Chunk, PolicyFacts, PolicyHost
from edgedec.policies._budget import CacheBudget, Floats
from edgedec.policies._eviction import Eviction, Looks
from edgedec.policies._options import EveryOften
from edgedec.policies._options import budget as budget_rule

FACTS = PolicyFacts(("drop",), paper="StreamingLLM: attention sinks")


def make(
    host: PolicyHost,
    budget: Annotated[float, Opt("Tokens that stay: a number, or a share of those read.", must=budget_rule)] = 1024,
    sinks: Annotated[int, Opt("First tokens of these.", 0, 1 << 16)] = 4,
    every: EveryOften = 64,
) -> Streaming:
    return Streaming(host, CacheBudget(budget), Looks(every=every), sinks)


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
