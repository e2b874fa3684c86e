"""A bounded number of sure positions, and no end token early.

CD4LM's confidence-adaptive decoding (from its public code): the surest k positions, where k is how many reach
0.95, at least 1 and at most 32 (its published runs; 4 is only the default of its function). A position whose best
token ends the text is left until 30% of the budget is used, unless no other is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np

from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.host import DiffusionHost, MethodFacts
from edgedec.diffusion.seen import SeenBlock
from edgedec.plugins import Opt

FACTS = MethodFacts(paper="CD4LM")


def make(
    host: DiffusionHost,
    p: Annotated[float, Opt("Probability of a sure position.", 0, 1)] = 0.95,
    most: Annotated[int, Opt("Positions filled in a pass at most.", 1)] = 32,
    early: Annotated[float, Opt("Share of the budget before which no text ends.", 0, 1)] = 0.3,
) -> ConfidenceAdaptive:
    return ConfidenceAdaptive(p, most, early, host.ends)


class ConfidenceAdaptive:
    def __init__(self, p: float, most: int, early: float, ends: frozenset[int]) -> None:
        self._p, self._most, self._early, self._ends = p, most, early, ends

    def choose(self, seen: SeenBlock, canvas: Canvas) -> Sequence[int]:
        count = min(max(int((seen.sure >= self._p).sum()), 1 - min(seen.given, 1)), self._most)
        if canvas.budget and canvas.start - canvas.prompt < self._early * canvas.budget:
            ends = np.isin(seen.tokens[:, 0], list(self._ends))
            if ends.any() and not ends.all():
                kept = seen.only(~ends)
                return kept.at_least((), min(count, len(kept.positions)))
        return seen.at_least((), count)
