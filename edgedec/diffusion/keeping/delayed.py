"""Keys of filled tokens are kept one step late, and all are computed anew every few steps.

dKV-Cache (from its public code): a step runs the masked positions and the tokens that the step before filled;
older ones are read from the cache. Every R steps (8; Dream 4 to 16) and at each block everything is run. Lossy, except
with R = 1. It was made for GPUs, where a step costs the same for any number of rows; where rows cost, as here, it pays.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from edgedec.cache import Cache
from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.host import DiffusionHost, MethodFacts
from edgedec.diffusion.keeping._canvas_rows import canvas_plan
from edgedec.diffusion.seams import PassPlan
from edgedec.plugins import Opt

FACTS = MethodFacts(contexts=("full",), final=True, paper="dKV-Cache")


def make(
    host: DiffusionHost, every: Annotated[int, Opt("Steps after which everything is run again; 1: exact.", 1)] = 8
) -> Delayed:
    return Delayed(host, every)


class Delayed:
    def __init__(self, host: DiffusionHost, every: int) -> None:
        self._host, self._every = host, every
        self._kept = set[int]()
        self._block: tuple[int, int] | None = None
        self._steps = 0

    def plan(self, canvas: Canvas, cache: Cache) -> PassPlan:
        block = canvas.start, len(canvas.tokens)
        if block != self._block or self._steps >= self._every:
            self._block, self._steps, self._kept = block, 0, set()
            cache.truncate(0)
        self._steps += 1
        run = [i for i in range(len(canvas.tokens)) if i not in self._kept]
        keep = [i for i in run if canvas.known(i) and not self._predicts(canvas, i)]
        self._kept |= set(keep)
        return canvas_plan(self._host, canvas, run, np.isin(run, keep))

    def _predicts(self, canvas: Canvas, position: int) -> bool:
        """Whether the row of a position is needed for the masked one after it."""
        after = position + 1
        return self._host.facts.shift and after < len(canvas.tokens) and not canvas.known(after)
