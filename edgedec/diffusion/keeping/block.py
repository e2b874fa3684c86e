"""The exact block cache: a finished block is kept, in the same call that begins the next one (fused commit).

    call   [finished block: its final tokens | new block: masks]

The keys of a finished block depend on final tokens only, so nothing is ever out of date: the text is that without a
cache. Fast-dLLM v2 (arXiv:2509.26328) and SDAR keep the same, with a call for the commit alone; NBDiff runs a
finished block again causally, which is this call of a model with causal context. The rows of the block that is being
filled run in every pass.
"""

from __future__ import annotations

from edgedec.cache import Cache
from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.host import DiffusionHost, MethodFacts
from edgedec.diffusion.keeping._rows import BlockRows
from edgedec.diffusion.seams import PassPlan

FACTS = MethodFacts(contexts=("causal", "block"), exact=True, paper="arXiv:2509.26328")


def make(host: DiffusionHost) -> BlockCache:
    return BlockCache(host)


class BlockCache:
    def __init__(self, host: DiffusionHost) -> None:
        self._rows = BlockRows(host)

    def plan(self, canvas: Canvas, cache: Cache) -> PassPlan:
        self._rows.needed(canvas, cache)
        return self._rows.plan(canvas, cache)
