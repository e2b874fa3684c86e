"""An end token ends the canvas at once: what is behind it is run no more.

Learn2PD's end-of-text prediction, without its trained net: positions behind a filled end token are dropped,
though earlier ones are still masked. Rows that nobody reads are not counted as speed.
"""

from __future__ import annotations

from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.host import DiffusionHost, MethodFacts

FACTS = MethodFacts(final=True, paper="Learn2PD")


def make(host: DiffusionHost) -> Cut:
    return Cut()


class Cut:
    def factor(self, canvas: Canvas) -> float:
        return 1.0

    def cuts(self, canvas: Canvas, position: int) -> bool:
        return True
