"""Sends only salient prompt tokens through the upper layers, and evicts from each cache apart from that (FastKV).

Jo et al. 2025. A prompt goes through the first `layer` layers as a whole. There its last rows show which tokens matter,
and only the share `rate` of them goes on to the layers above. From what each block then holds, the share `budget` of
the tokens stays cached, chosen in each block by what these last rows paid: how much is computed and how much is kept
are two choices.

From the abstract: the layer, the two independent rates. Ours: the default layer and rates, and at least eight tokens
besides the window.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Annotated, Any

import numpy as np

from edgedec.cache import Cache
from edgedec.errors import UsageError
from edgedec.plugins import Opt
from edgedec.policies import PolicyFacts, PolicyHost
from edgedec.policies._budget import LEAST, CacheBudget, Floats, dropped, pooled
from edgedec.policies._eviction import Looks, looks_of
from edgedec.policies._options import Budget, Every, Observe, Pool, Window
from edgedec.policies._pruned import Stage
from edgedec.policies.snapkv import SnapKV
from edgedec.runtime import Adapter, Call, Rows

# The default depth at which tokens are chosen, as a share of the layers.
_DEPTH = 0.4

FACTS = PolicyFacts(
    ("drop", "attention_sums", "slices", "selections", "hidden"),
    kinds=("attention", "mlp", "moe"),
    paper="FastKV",
)


def make(
    host: PolicyHost,
    budget: Budget = 0.1,
    rate: Annotated[float, Opt("Share of a prompt's tokens in the upper layers.", above=0, high=1)] = 0.2,
    layer: Annotated[int, Opt("Layers that all tokens go through; 0: two fifths.", 0)] = 0,
    window: Window = 32,
    pool: Pool = 7,
    every: Every = 0,
    observe: Observe = 8,
) -> FastKV:
    looks = looks_of("fastkv", Looks(window, every, observe, pool))
    layers = host.spec.n_layers
    layer = layer or max(1, round(_DEPTH * layers))
    if not layer < layers:
        raise UsageError(f"--cache fastkv: layer={layer}: must be from 1 to {layers - 1}")
    return FastKV(host, CacheBudget(budget), looks, rate, layer)


class FastKV(SnapKV):
    def __init__(self, host: PolicyHost, budget: CacheBudget, looks: Looks, rate: float, layer: int) -> None:
        super().__init__(host, budget, looks)
        self._rate, self._layer = rate, layer
        self._cut = host.spec.span(0, layer)[-1] + 1

    def prefill(
        self, cache: Cache, ids: Sequence[int], most: int, adapter: Adapter | None
    ) -> Generator[Call, Any, None]:
        n, keep = len(ids), max(int(np.ceil(self._rate * len(ids))), self.window + LEAST)
        if keep >= n:
            return  # too short a prompt to leave anything out
        lower = Stage(range(self._cut), Rows.chain(ids, cache.length), None)
        yield from lower.run(cache, most, self.window, True, adapter)
        gone = dropped(self._salience(lower, n), keep, self.sinks, self.window)
        upper = lower.above(range(self._cut, self.spec.n_blocks), np.setdiff1d(np.arange(n), gone))
        yield from upper.run(cache, most, self.window, False, adapter)
        cache.commit(range(n))
        for stage in (lower, upper):
            assert stage.last is not None
            self._look(stage.last)

    def _salience(self, lower: Stage, n: int) -> Floats:
        """The attention of the last rows to each of the n tokens, in the last attention block that ran all of them."""
        assert lower.last is not None
        block = max(lower.last.attention)
        return pooled(lower.last.attention[block], self.width)[-n:]
