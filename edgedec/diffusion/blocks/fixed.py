"""Blocks of one size, by default the one that the model was trained for.

A model whose finished blocks see themselves whole (context `block`) takes that size only; one with causal context also
smaller ones; one with full context any.
"""

from __future__ import annotations

from typing import Annotated

from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.host import DiffusionHost, MethodFacts
from edgedec.diffusion.seen import SeenBlock
from edgedec.errors import UsageError
from edgedec.plugins import Opt

FACTS = MethodFacts(exact=True)


def make(
    host: DiffusionHost, size: Annotated[int, Opt("Tokens of a block; 0: as the model was trained.", 0)] = 0
) -> Fixed:
    return Fixed(checked_size(host, size))


def checked_size(host: DiffusionHost, size: int) -> int:
    """The size of blocks, 0: the model's own; UsageError for one that it was not trained for."""
    trained, context = host.facts.block, host.facts.context
    if (context == "block" and size not in (0, trained)) or (context == "causal" and size > trained):
        able = f"{trained} only" if context == "block" else f"1 to {trained}"
        raise UsageError(f"--diffusion blocks: size={size}: the model was trained for blocks of {able}")
    return size or trained


class Fixed:
    def __init__(self, size: int) -> None:
        self._size = size

    def begin(self, canvas: Canvas, start: int) -> int:
        return start + self._size

    def cut(self, seen: SeenBlock, canvas: Canvas) -> int:
        return canvas.end
