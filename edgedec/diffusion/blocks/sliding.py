"""A window that slides: as soon as a position is filled, another masked one joins at the end.

WeDLM (from its public code): as many masked positions as the window holds, whatever is filled among them. The
block has no end of its own, so it goes with `keep=reorder`, whose prefix grows token by token.
"""

from __future__ import annotations

from typing import Annotated

from edgedec.diffusion.blocks.fixed import checked_size
from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.host import DiffusionHost, MethodFacts
from edgedec.diffusion.seen import SeenBlock
from edgedec.plugins import Opt

FACTS = MethodFacts(contexts=("causal",), needs="keep=reorder", paper="WeDLM")


def make(
    host: DiffusionHost, size: Annotated[int, Opt("Positions of the window; 0: as the model was trained.", 0)] = 0
) -> Sliding:
    return Sliding(checked_size(host, size))


class Sliding:
    def __init__(self, size: int) -> None:
        self._size = size

    def begin(self, canvas: Canvas, start: int) -> int:
        return start + self._size

    def cut(self, seen: SeenBlock, canvas: Canvas) -> int:
        return max(int(seen.positions[0]) + self._size, canvas.end)
