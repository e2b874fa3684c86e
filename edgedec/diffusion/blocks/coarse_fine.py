"""Large blocks to think, small ones to answer.

TDAR (trajectory-level coarse to fine, after its public code): until the token that ends a thought, blocks of
one size; after it, of another.
"""

from __future__ import annotations

from typing import Annotated

from edgedec.diffusion.blocks.fixed import checked_size
from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.host import DiffusionHost, MethodFacts
from edgedec.diffusion.seen import SeenBlock
from edgedec.errors import UsageError
from edgedec.plugins import Opt

FACTS = MethodFacts(contexts=("causal", "full"), paper="TDAR")


def make(
    host: DiffusionHost,
    think: Annotated[int, Opt("Tokens of a block of a thought; 0: as the model was trained.", 0)] = 0,
    answer: Annotated[int, Opt("Tokens of a block after it; 0: a quarter of the others.", 0)] = 0,
    close: Annotated[str, Opt("Text of the token that ends a thought.")] = "</think>",
) -> CoarseFine:
    token, large = host.token(close), checked_size(host, think)
    if token is None:
        raise UsageError(f"--diffusion blocks coarse_fine: close={close}: the tokenizer has no such token")
    return CoarseFine(large, checked_size(host, answer) if answer else max(large // 4, 1), token)


class CoarseFine:
    def __init__(self, think: int, answer: int, close: int) -> None:
        self._think, self._answer, self._close = think, answer, close

    def begin(self, canvas: Canvas, start: int) -> int:
        return start + (self._answer if self._close in canvas.tokens[:start] else self._think)

    def cut(self, seen: SeenBlock, canvas: Canvas) -> int:
        return canvas.end
