"""A fixed number of positions a pass, the surest ones: one token a pass is the text that other schedules approach.

LLaDA (arXiv:2502.09992), "low-confidence remasking". With `steps=N` a block takes at most N passes, and the loop adds
what the schedule leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.host import DiffusionHost, MethodFacts
from edgedec.diffusion.seen import SeenBlock
from edgedec.plugins import Opt

FACTS = MethodFacts(exact=True, paper="arXiv:2502.09992")


def make(host: DiffusionHost, count: Annotated[int, Opt("Positions filled in a pass.", 1)] = 1) -> Static:
    return Static(count)


class Static:
    def __init__(self, count: int) -> None:
        self._count = count

    def choose(self, seen: SeenBlock, canvas: Canvas) -> Sequence[int]:
        return seen.surest(self._count)
