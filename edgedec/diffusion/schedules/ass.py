"""Ascending steps: pass i fills 2^i positions, the surest ones, so that a block takes log2 of its length.

ASS, with EOSER (from its public code), of the whole canvas there: `blocks=fixed:size=…` makes a block as long.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.host import DiffusionHost, MethodFacts
from edgedec.diffusion.seen import SeenBlock

FACTS = MethodFacts(paper="EOSER, ASS")


def make(host: DiffusionHost) -> Ascending:
    return Ascending()


class Ascending:
    def choose(self, seen: SeenBlock, canvas: Canvas) -> Sequence[int]:
        return seen.surest(2**canvas.step)
