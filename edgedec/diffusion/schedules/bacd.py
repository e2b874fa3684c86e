"""Block-aware confidence: the threshold of a block follows how sure its accepted tokens were.

TDAR (bounded adaptive confidence decoding, after its public code): in a block's first pass the threshold is
the largest probability, in later ones the mean probability of what was accepted in this block, both clipped to 0.6 to
0.9; else the surest position.
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

FACTS = MethodFacts(paper="TDAR")


def make(
    host: DiffusionHost,
    low: Annotated[float, Opt("Least threshold.", 0, 1)] = 0.6,
    high: Annotated[float, Opt("Largest threshold.", 0, 1)] = 0.9,
) -> BoundedAdaptive:
    if low > high:
        raise UsageError(f"--diffusion schedule bacd: low={low}: must be at most high={high}")
    return BoundedAdaptive(low, high)


class BoundedAdaptive:
    """Example, low 0.6, high 0.9: p 0.7 0.65 fills 0.7 (threshold 0.7); then p 0.69 0.71 fills 0.71 (threshold 0.7)."""

    def __init__(self, low: float, high: float) -> None:
        self._low, self._high = low, high
        self._accepted = list[float]()

    def choose(self, seen: SeenBlock, canvas: Canvas) -> Sequence[int]:
        if canvas.step == 0:
            self._accepted = []
        mean = float(np.mean(self._accepted)) if self._accepted else float(seen.sure.max())
        threshold = min(max(mean, self._low), self._high)
        chosen = seen.where(seen.sure >= threshold)
        self._accepted += seen.sure[np.isin(seen.positions, chosen)].tolist()
        return chosen
