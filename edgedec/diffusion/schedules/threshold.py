"""All positions whose best token is more probable than a threshold; the surest one if there is none.

Fast-dLLM (arXiv:2505.22618) and its second version (arXiv:2509.26328), with 0.9.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.host import DiffusionHost, MethodFacts
from edgedec.diffusion.seen import SeenBlock
from edgedec.plugins import Opt

FACTS = MethodFacts(paper="arXiv:2509.26328")


def make(
    host: DiffusionHost, p: Annotated[float, Opt("Probability above which a position is filled.", 0, 1)] = 0.9
) -> Threshold:
    return Threshold(p)


class Threshold:
    def __init__(self, p: float) -> None:
        self._p = p

    def choose(self, seen: SeenBlock, canvas: Canvas) -> Sequence[int]:
        return seen.where(seen.sure > self._p)
