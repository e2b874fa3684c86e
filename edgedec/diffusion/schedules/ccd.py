"""Consistency over time: a position is filled when it was among the surest in two passes with the same token.

CCD (after its public code): of the V surest positions now and in the pass before, those whose best token is
the same; else the surest. V begins at `count` and grows by one a pass up to 5 times that, after 5 passes in which only
the surest positions are filled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.host import DiffusionHost, MethodFacts
from edgedec.diffusion.seen import SeenBlock
from edgedec.plugins import Opt

FACTS = MethodFacts(paper="CCD")
_MOST = 5


def make(
    host: DiffusionHost,
    count: Annotated[int, Opt("Positions compared at first.", 1)] = 1,
    warm: Annotated[int, Opt("Passes of a block before positions are compared.", 0)] = 5,
) -> Consistent:
    return Consistent(count, warm)


class Consistent:
    def __init__(self, count: int, warm: int) -> None:
        self._count, self._warm = count, warm

    def choose(self, seen: SeenBlock, canvas: Canvas) -> Sequence[int]:
        before, passes = seen.before, canvas.step - self._warm
        if before is None or passes < 0:
            return seen.surest(self._count)
        width = min(self._count + passes, _MOST * self._count)
        now, then = (set(each.at_least((), width)) for each in (seen, before))
        tokens = dict(zip(before.positions.tolist(), before.tokens[:, 0].tolist(), strict=True))
        same = [
            position
            for position, token in zip(seen.positions.tolist(), seen.tokens[:, 0].tolist(), strict=True)
            if position in now & then and tokens.get(position) == token
        ]
        return same or seen.surest()
