"""A round of information: positions above a threshold, and more of the surest until a pass brings enough bits.

Explore-then-exploit (from its abstract, arXiv:2511.21103, and a summary). Rounds are bounded below by the
text's bits over the bits of a round. What follows from that and is here: every position with p ≥ 0.9, and, while the
round brings fewer bits (the sum of -log2 p of what is filled) than `bits`, the surest of the others that have p ≥
`least`. Which uncertain positions the paper tries as branches is not published; branches are not here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np

from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.host import DiffusionHost, MethodFacts
from edgedec.diffusion.seen import SeenBlock
from edgedec.plugins import Opt

FACTS = MethodFacts(paper="arXiv:2511.21103")


def make(
    host: DiffusionHost,
    p: Annotated[float, Opt("Probability from which a position is filled.", 0, 1)] = 0.9,
    bits: Annotated[float, Opt("Bits that a pass brings at least, if it can.", 0)] = 1.0,
    least: Annotated[float, Opt("Least probability of a position that is filled for its bits.", 0, 1)] = 0.5,
) -> InformedRounds:
    return InformedRounds(p, bits, least)


class InformedRounds:
    """Example, bits 1: p 0.95 0.6 0.55 fills 0.95 (0.07 bits) and 0.6 (0.74), then 0.55 (0.86), and stops above 1."""

    def __init__(self, p: float, bits: float, least: float) -> None:
        self._p, self._bits, self._least = p, bits, least

    def choose(self, seen: SeenBlock, canvas: Canvas) -> Sequence[int]:
        chosen, bits = list[int](), 0.0
        for at in np.argsort(-seen.sure, kind="stable").tolist():
            p = float(seen.sure[at])
            if p < self._p and (p < self._least or bits >= self._bits):
                break
            chosen.append(int(seen.positions[at]))
            bits -= float(np.log2(max(p, 1e-12)))
        return sorted(chosen) or seen.surest()
