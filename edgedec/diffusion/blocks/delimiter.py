"""Blocks that end at a line break, where the model is sure of one.

AdaBlock (after its public code): in a block's first pass, the surest position whose best token is a line break
within a quarter of the budget, or what is left of it; if its probability reaches 0.3 (LLaDA; 0.5 for Dream), the block
ends behind it, else it has the usual size. A model with causal context looks no farther than its trained block.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from edgedec.diffusion.blocks.fixed import checked_size
from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.host import DiffusionHost, MethodFacts
from edgedec.diffusion.seen import SeenBlock
from edgedec.plugins import Opt

FACTS = MethodFacts(contexts=("causal", "full"), paper="AdaBlock")
_SHARE = 4


def make(
    host: DiffusionHost,
    size: Annotated[int, Opt("Tokens of a block without a line break; 0: as the model was trained.", 0)] = 0,
    p: Annotated[float, Opt("Probability from which a line break ends a block.", 0, 1)] = 0.3,
) -> Delimiter:
    return Delimiter(checked_size(host, size), p, host.newlines(), host.facts.context == "full")


class Delimiter:
    def __init__(self, size: int, p: float, newlines: frozenset[int], wide: bool) -> None:
        self._size, self._p, self._newlines, self._wide = size, p, list(newlines), wide

    def begin(self, canvas: Canvas, start: int) -> int:
        return start + max(self._size, canvas.budget // _SHARE if self._wide else 0)

    def cut(self, seen: SeenBlock, canvas: Canvas) -> int:
        if canvas.step:
            return canvas.end
        breaks = seen.only(np.isin(seen.tokens[:, 0], self._newlines))
        if len(breaks.positions) and breaks.sure.max() >= self._p:
            return int(breaks.positions[breaks.sure.argmax()]) + 1
        return canvas.start + self._size
