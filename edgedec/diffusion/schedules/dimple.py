"""Confident decoding beside a timetable: all positions above a threshold, else as many as the timetable says.

Dimple (from its public code): all positions with p > 0.95; if there is none, the surest
max(1, int(m (1 - s/t))) of the m masked ones, where s/t is the share of them that the timetable keeps masked in this
pass. Passes: `steps`, or as many as the block has positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.host import DiffusionHost, MethodFacts
from edgedec.diffusion.seen import SeenBlock
from edgedec.plugins import Opt

FACTS = MethodFacts(paper="Dimple")


def make(
    host: DiffusionHost, p: Annotated[float, Opt("Probability above which a position is filled.", 0, 1)] = 0.95
) -> Timetable:
    return Timetable(p)


class Timetable:
    """Example, 8 masked, 4 passes left, none sure: t = 4/4, s = 3/4, so int(8 / 4) = 2 are filled."""

    def __init__(self, p: float) -> None:
        self._p = p

    def choose(self, seen: SeenBlock, canvas: Canvas) -> Sequence[int]:
        sure = seen.sure > self._p
        if sure.any():
            return seen.where(sure)
        left = seen.left or max(canvas.end - canvas.start - canvas.step, 1)
        return seen.surest(max(1, int(len(seen.positions) * (1 - (left - 1) / left))))
