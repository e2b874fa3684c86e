"""Blocks that grow while the model is unsure at their end.

DCD (from third-party notes of arXiv:2601.02076, which give no defaults, so these are ours): if the least
probability that a pass filled is below `low`, the block's end moves on by `step` tokens, `most` in all. What is
uncertain is left until more of the text is known.
"""

from __future__ import annotations

from typing import Annotated

from edgedec.diffusion.blocks.fixed import checked_size
from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.host import DiffusionHost, MethodFacts
from edgedec.diffusion.seen import SeenBlock
from edgedec.plugins import Opt

FACTS = MethodFacts(contexts=("full",), paper="arXiv:2601.02076")


def make(
    host: DiffusionHost,
    size: Annotated[int, Opt("Tokens of a block at first; 0: as the model was trained.", 0)] = 0,
    step: Annotated[int, Opt("Tokens added at a time.", 1)] = 4,
    most: Annotated[int, Opt("Tokens added in all.", 0)] = 16,
    low: Annotated[float, Opt("Probability below which the block grows.", 0, 1)] = 0.6,
) -> GrowingBlocks:
    return GrowingBlocks(checked_size(host, size), step, most, low)


class GrowingBlocks:
    def __init__(self, size: int, step: int, most: int, low: float) -> None:
        self._size, self._step, self._most, self._low = size, step, most, low

    def begin(self, canvas: Canvas, start: int) -> int:
        return start + self._size

    def cut(self, seen: SeenBlock, canvas: Canvas) -> int:
        if canvas.step == 0 or canvas.least >= self._low:
            return canvas.end
        return min(canvas.end + self._step, canvas.start + self._size + self._most)
