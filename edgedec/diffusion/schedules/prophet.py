"""Early answer: everything is filled at once when the best token leads the second by enough.

Prophet (after its public code): the mean gap of the two best logits over the masked positions must reach 7.5,
5 or 2.5 in the first, second and last third of the passes; until then one position a pass, the surest. The passes of a
block are `steps`, or as many as it has positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np

from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.host import DiffusionHost, MethodFacts
from edgedec.diffusion.seen import SeenBlock
from edgedec.errors import UsageError
from edgedec.plugins import Opt

FACTS = MethodFacts(paper="Prophet")


def make(
    host: DiffusionHost,
    gaps: Annotated[tuple[float, ...], Opt("Least mean gap of the logits in each third of the passes.")] = (
        7.5,
        5,
        2.5,
    ),
    span: Annotated[int, Opt("Masked positions whose gaps are averaged, the last of the block; 0: all.", 0)] = 0,
) -> Prophet:
    if len(gaps) != 3:
        raise UsageError(f"--diffusion schedule prophet: gaps={list(gaps)}: must be three numbers")
    return Prophet(gaps, span)


class Prophet:
    def __init__(self, gaps: Sequence[float], span: int) -> None:
        self._gaps, self._span = gaps, span

    def choose(self, seen: SeenBlock, canvas: Canvas) -> Sequence[int]:
        gap = (seen.scores[:, 0] - seen.scores[:, 1])[-self._span if self._span else 0 :]
        total = canvas.step + seen.left if seen.left else canvas.end - canvas.start
        third = min(3 * canvas.step // max(total, 1), 2)
        if float(np.mean(gap)) >= self._gaps[third]:
            return list(map(int, seen.positions))
        return seen.surest()
