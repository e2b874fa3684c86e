"""End tokens count for less at first: their probability is multiplied by a factor that rises to 1.

EOSER (from its public code): from 0.4 to 1 over the budget (0.01 with ascending steps), so that a model that
is sure of padding does not fill it first.
"""

from __future__ import annotations

from typing import Annotated

from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.host import DiffusionHost, MethodFacts
from edgedec.plugins import Opt

FACTS = MethodFacts(paper="EOSER, ASS")


def make(
    host: DiffusionHost, factor: Annotated[float, Opt("Factor at the beginning of the budget.", 0, 1)] = 0.4
) -> Rejected:
    return Rejected(factor)


class Rejected:
    def __init__(self, factor: float) -> None:
        self._factor = factor

    def factor(self, canvas: Canvas) -> float:
        known = sum(token != canvas.mask for token in canvas.tokens) - canvas.prompt
        share = min(known / canvas.budget, 1.0) if canvas.budget else 1.0
        return self._factor + (1 - self._factor) * share

    def cuts(self, canvas: Canvas, position: int) -> bool:
        return False
