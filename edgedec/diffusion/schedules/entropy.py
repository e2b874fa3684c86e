"""Low entropy near the front: H + 0.02 times the distance to the first masked position must be below 0.4 nats.

WeDLM (from its public code); else the position of the least sum. There the window slides over the text and
keys are those of causal attention; here it is the schedule alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.host import DiffusionHost, MethodFacts
from edgedec.diffusion.seen import SeenBlock
from edgedec.plugins import Opt

FACTS = MethodFacts(entropy=True, paper="WeDLM")


def make(
    host: DiffusionHost,
    most: Annotated[float, Opt("Entropy in nats below which a position is filled.", 0)] = 0.4,
    slope: Annotated[float, Opt("Entropy added for each position behind the first masked one.", 0)] = 0.02,
) -> LowEntropy:
    return LowEntropy(most, slope)


class LowEntropy:
    def __init__(self, most: float, slope: float) -> None:
        self._most, self._slope = most, slope

    def choose(self, seen: SeenBlock, canvas: Canvas) -> Sequence[int]:
        assert seen.entropy is not None
        cost = seen.entropy + self._slope * (seen.positions - seen.positions[0])
        chosen = seen.positions[cost < self._most].tolist()
        return chosen if chosen or seen.given else [int(seen.positions[cost.argmin()])]
