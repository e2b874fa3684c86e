"""Lossy: filled tokens are replaced where the model, seeing the whole block, is sure enough of others.

LLaDA2.1 (arXiv:2602.08676, after its public code): every pass fills masked positions by the schedule, whose threshold
may then be low, and predicts the filled ones too: a token that is not the best one any more is replaced by it if that
has a probability above `p`. A filled block has further passes until one replaces nothing, or `most` of them. The
prompt, and blocks that are finished, stay; so a block is delivered whole, once it is. Its authors take thresholds of
0.7 and 0.5 for quality, of 0.5 and 0 for speed, as `schedule=threshold:p=0.7,fits=edit:p=0.5`. For models that were
trained to correct tokens. Our own: also where tokens are drawn the best one replaces. With shift a block's first token
stays, as its row does not see the block.
"""

from __future__ import annotations

from typing import Annotated

from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.fits.front import Front
from edgedec.diffusion.host import DiffusionHost, MethodFacts
from edgedec.diffusion.seen import SeenBlock
from edgedec.plugins import Opt

FACTS = MethodFacts(edits=True, paper="arXiv:2602.08676")


def make(
    host: DiffusionHost,
    p: Annotated[float, Opt("Probability above which another token replaces a filled one; lossy.", 0, 1)] = 0.5,
    most: Annotated[int, Opt("Passes over a filled block at most.", 0)] = 16,
) -> EditFit:
    return EditFit(p, most)


class EditFit(Front):
    """Example, p 0.5: of 4 5 6, whose best tokens are 4 (0.9), 7 (0.6) and 8 (0.5), the second is replaced."""

    def __init__(self, p: float, most: int) -> None:
        self._p, self.edits = p, most

    def replaced(self, canvas: Canvas, seen: SeenBlock) -> list[int]:
        best, sure = seen.tokens[:, 0].tolist(), seen.sure.tolist()
        found = zip(seen.positions.tolist(), best, sure, strict=True)
        return [position for position, token, p in found if token != canvas.tokens[position] and p > self._p]
