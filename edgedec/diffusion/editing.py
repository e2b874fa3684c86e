"""Replaces filled tokens of a block before it is delivered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgedec.decoding.messages import Token
from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.seen import Line, see
from edgedec.errors import UsageError

if TYPE_CHECKING:
    from edgedec.diffusion.loop import DiffusionText


class BlockEdits:
    """How long a block may be edited. most: passes after the one that fills its last position, -1: it is never edited;
    in_order: whether tokens depend on those before them."""

    def __init__(self, most: int, in_order: bool) -> None:
        if most >= 0 and in_order:
            raise UsageError(
                "--diffusion fits=edit: replaces tokens that others were chosen after; leave out the constraint, "
                "penalties and bias, which depend on the tokens before"
            )
        self._most, self._passes = most, 0

    def begin(self, canvas: Canvas, first: int) -> None:
        """Begin a block that may be edited from a position on."""
        canvas.editable, self._passes = first if self._most >= 0 else -1, 0

    def passed(self, canvas: Canvas, masked: bool, replaced: bool) -> None:
        """End the editing of a filled block with a pass that changed nothing, or the last one. masked: whether the pass
        had positions to fill."""
        self._passes += not masked
        if not canvas.masked() and (self._passes >= self._most or not (masked or replaced)):
            canvas.editable = -1


def replacements(text: DiffusionText, lines: dict[int, Line]) -> dict[int, Token]:
    """The tokens that replace filled ones; lines: the rows that predict positions which may be edited."""
    if not lines:
        return {}
    canvas, methods = text.canvas, text.methods
    seen = see(lines, canvas.mask, False, None).scaled(text.ends, methods.ends.factor(canvas))
    text.tape.saw(seen)
    best = dict(zip(seen.positions.tolist(), seen.tokens[:, 0].tolist(), strict=True))
    return {at: text.picker.with_logprobs(Token(best[at]), lines[at]) for at in methods.fits.replaced(canvas, seen)}
