"""The record of how a canvas was filled, pass by pass."""

from __future__ import annotations

from dataclasses import dataclass, field

from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.seams import Bridge
from edgedec.diffusion.seen import SeenBlock


@dataclass
class FillTrace:
    """One pass over the block `start` to `end` (excluded), its number `step` in that block. rows: that were computed;
    fills: position, token, and the probability of the position's best token (None if it was not predicted); moves:
    gaps that were bridged, whose tokens push what is behind them."""

    start: int
    end: int
    step: int
    rows: int
    seconds: float
    fills: list[tuple[int, int, float | None]] = field(default_factory=list)
    moves: list[Bridge] = field(default_factory=list)


class FillTape:
    """Records passes into a list; None records nothing."""

    def __init__(self, passes: list[FillTrace] | None) -> None:
        self._passes = passes
        self._sure: dict[int, float] = {}
        self._rows = 0

    def passed(self, canvas: Canvas, rows: int, seconds: float) -> None:
        """Begin the record of a pass; rows: all that were computed so far."""
        if self._passes is not None:
            self._passes.append(FillTrace(canvas.start, canvas.end, canvas.step, rows - self._rows, seconds))
            self._rows = rows

    def saw(self, seen: SeenBlock) -> None:
        """Note what a pass says of the masked positions."""
        if self._passes:
            self._sure |= dict(zip(seen.positions.tolist(), seen.sure.tolist(), strict=True))

    def filled(self, position: int, token: int) -> None:
        if self._passes:
            self._passes[-1].fills.append((position, token, self._sure.get(position)))

    def moved(self, bridge: Bridge) -> None:
        if self._passes:
            self._passes[-1].moves.append(bridge)
