"""Confident decoding beside a timetable: all positions above a threshold, else as many as the timetable says.

Dimple (from its public code): all positions with p > 0.95; if there is none, the surest of the m masked ones, so many
that no more stay masked than the timetable has for the next pass, or for the first later one that this fills a position
for: int(m (1 - s/t)), where t is the share that is masked now and s the timetable's, 1 - k/N after k of N passes (there
with an eps, which is left out). Passes: `steps`, or as many as the block has positions.
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
    """Example, a block of 8, 4 passes, so 6, 4, 2 and 0 stay masked: the first pass fills 2, the second 1 of 3, if the
    first left no more: 4 are not reached, 2 are."""

    def __init__(self, p: float) -> None:
        self._p = p

    def choose(self, seen: SeenBlock, canvas: Canvas) -> Sequence[int]:
        sure = seen.sure > self._p
        if sure.any():
            return seen.where(sure)
        size, masked = canvas.end - canvas.start, len(seen.positions) + seen.given
        passes = canvas.step + seen.left if seen.left else max(size, canvas.step + 1)
        later = (masked - -(-size * (passes - k) // passes) for k in range(canvas.step + 1, passes + 1))
        return seen.surest(next(count for count in later if count > 0))
