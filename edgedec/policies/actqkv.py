"""Reads the pages whose mean keys match probe queries best, a cut-off for each layer (ActQKV).

The probe of a query head is the mean of its latest `window` queries, each weighted by how far it is
from their plain mean: what stands out says what is looked for. A page is worth the probe times its mean key. A layer
takes as many pages as its attention to pages is spread over (the exponential of the entropy), at most the budget: few
where it is sharp. Pages are chosen after a prompt and after every `every` tokens, and are the same for all rows until
then; the first and the latest tokens are read in any case. The mean key of a page is made once.

From the abstract: a probe query of each window by the bias of its activations, and a cut-off by the density of
information of each layer. Ours: the bias is the distance from the mean query, the density the entropy of page weights.
"""

from __future__ import annotations

import numpy as np

from edgedec.cache import Cache
from edgedec.policies import PolicyFacts, PolicyHost
from edgedec.policies._budget import CacheBudget
from edgedec.policies._options import ChoiceEvery, Queries, ReadBudget, Recent, Sinks
from edgedec.policies._page_choice import (
    LEAST_SHARE,
    NEEDS,
    Array,
    Ints,
    Probing,
    page_ends,
    probing_of,
    ranked,
    worth_of,
)
from edgedec.runtime import PAGE, View

__all__ = ["NEEDS"]

FACTS = PolicyFacts(NEEDS, paper="ActQKV: Activation-aware Probe-Query")


def make(
    host: PolicyHost,
    budget: ReadBudget = 2048,
    every: ChoiceEvery = 64,
    window: Queries = 8,
    sinks: Sinks = 4,
    recent: Recent = 128,
) -> ActQKV:
    always = probing_of("actqkv", every, window, sinks, recent)
    return ActQKV(host, CacheBudget(budget), always, every, window)


class ActQKV(Probing):
    """What is chosen is pages."""

    _UNIT = PAGE

    def ends(self, cache: Cache) -> Ints:
        return page_ends(cache)

    def pick(self, cache: Cache, block: int, queries: Array, ends: Ints, pages: int) -> list[Ints]:
        means = self._means.of(cache, block, ends)
        return best_pages(worth_of(probes(queries), means, self.spec.attention[block].scale), pages)

    def view(self, block: int, pages: int | None) -> View | None:
        return View(*self.always, chosen=self._chosen[block]) if pages is not None and block in self._chosen else None


def probes(queries: Array) -> Array:
    """queries [n, heads, d] -> one a head [heads, d]: weighted by their distance from the mean.

    queries 0 0 3 of one dimension: distances 1 1 2 from 1, probe (0 + 0 + 2 * 3) / 4 = 1.5
    """
    distance = np.linalg.norm(queries - queries.mean(axis=0), axis=2, keepdims=True) + np.float32(LEAST_SHARE)
    found: Array = (distance * queries).sum(axis=0) / distance.sum(axis=0)
    return found


def best_pages(worth: Array, most: int) -> list[Ints]:
    """The pages of each head, ascending: as many as the layer's attention is spread over, at most `most`.

    worth 0.5 0.5 0 of one head, most 3 -> entropy ln 2, two pages: 0 1
    """
    entropy = -(worth * np.log(np.maximum(worth, LEAST_SHARE))).sum(axis=1).mean() if worth.size else 0.0
    count = min(most, int(np.ceil(np.exp(entropy) - 1e-3)), worth.shape[1])
    return [np.sort(ranked(head)[:count]) for head in worth]
