"""Phases: one pass over the text and the masks nearest to it, then passes over the nearest few alone.

Window-Diffusion (from its public code): every 32 steps one pass over everything filled and the next 128 masked
positions; others are absent. Until the next phase only the rows from the first mask to the 32nd are run, against the
keys of that pass. Lossy. Rows cost on a CPU, so it pays here where it does not on a GPU.
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

FACTS = MethodFacts(contexts=("full",), final=True, paper="Window-Diffusion")


def make(
    host: DiffusionHost,
    every: Annotated[int, Opt("Steps of a phase.", 1)] = 32,
    wide: Annotated[int, Opt("Masked positions of a phase's first pass.", 1)] = 128,
    near: Annotated[int, Opt("Masked positions of its other passes.", 1)] = 32,
) -> Window:
    return Window(host, every, wide, near)


class Window:
    def __init__(self, host: DiffusionHost, every: int, wide: int, near: int) -> None:
        self._host, self._every, self._wide, self._near = host, every, wide, near
        self._steps, self._run, self._size = every, list[int](), -1

    def plan(self, canvas: Canvas, cache: Cache) -> PassPlan:
        masked = [i for i in range(canvas.start, len(canvas.tokens)) if not canvas.known(i)]
        if self._steps >= self._every or self._size != len(canvas.tokens) or masked[0] > self._run[-1]:
            return self._phase(canvas, cache, masked)
        self._steps += 1
        return canvas_plan(self._host, canvas, self._run, np.zeros(len(self._run), bool))

    def _phase(self, canvas: Canvas, cache: Cache, masked: list[int]) -> PassPlan:
        """The pass that begins a phase; kept are all rows but those of its other passes."""
        cache.truncate(0)
        self._size = len(canvas.tokens)
        front = masked[0] - int(self._host.facts.shift)
        last = masked[min(self._near, len(masked)) - 1]
        absent = set(masked[self._wide :])
        run = [i for i in range(len(canvas.tokens)) if i not in absent]
        self._run, self._steps = [i for i in run if front <= i <= last], 1
        return canvas_plan(self._host, canvas, run, ~np.isin(run, self._run))
