"""Each pass's positions spread over the parts of a block, by confidence within each part.

NAP (its public code trains, its inference is not released, so the parts of equal length are ours): a canvas of
`parts` independent parts, of which every pass fills `count` positions in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.host import DiffusionHost, MethodFacts
from edgedec.diffusion.seen import SeenBlock
from edgedec.plugins import Opt

FACTS = MethodFacts(paper="NAP")


def make(
    host: DiffusionHost,
    parts: Annotated[int, Opt("Parts of a block.", 1)] = 3,
    count: Annotated[int, Opt("Positions of each part filled in a pass.", 1)] = 1,
) -> SpreadParts:
    return SpreadParts(parts, count)


class SpreadParts:
    def __init__(self, parts: int, count: int) -> None:
        self._parts, self._count = parts, count

    def choose(self, seen: SeenBlock, canvas: Canvas) -> Sequence[int]:
        size = -(-(canvas.end - canvas.start) // self._parts)
        part, found = (seen.positions - canvas.start) // size, list[int]()
        for i in range(self._parts):
            if (part == i).any():
                found += seen.only(part == i).at_least((), self._count)
        return found
