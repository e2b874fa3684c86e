"""The rows of a pass: what is not cached of the text before the block, and the block as a group of rows that see each
other."""

from __future__ import annotations

import numpy as np

from edgedec.bundle.manifest import DiffusionFacts
from edgedec.cache import Cache
from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.host import DiffusionHost
from edgedec.diffusion.seams import PassPlan
from edgedec.runtime import Rows


class BlockRows:
    """Plans of a model that sees what is before a block, and the block whole.

    Example, causal context, shifted, 3 tokens known and cached but for the last, a block of 3 (M: masked):

        token     c  M  M  M
        position  2  3  4  5
        group     -  1  1  1      commit 1 row; predicted are 3 by the row of c, 4 and 5 by rows of the block
    """

    def __init__(self, host: DiffusionHost) -> None:
        self._facts, self._can = host.facts, host.capabilities

    def needed(self, canvas: Canvas, cache: Cache) -> None:
        """Cut the cache to whole blocks, and so that the row that predicts the block's first token is run."""
        facts, unit = self._facts, unit_of(self._facts)
        length = min(cache.length // unit * unit, canvas.start)
        if facts.shift and canvas.start and not canvas.known(canvas.start):
            length = min(length, canvas.start - unit)
        if length < cache.length:
            cache.truncate(length)

    def plan(self, canvas: Canvas, cache: Cache) -> PassPlan:
        """The next call after what the cache has: a chunk of the text before the block, or the pass."""
        start, cached, unit = canvas.start, cache.length, unit_of(self._facts)
        pending, whole = start - cached, canvas.end - cached
        # The last unit is run with the block, which its last row may predict: read before, it would be read again.
        if pending > max(self._can.chunk(cached), unit) or (whole > self._can.largest_call and pending > unit):
            size = max(min(self._can.chunk(cached), pending - unit) // unit * unit, unit)
            return PassPlan(self.rows(canvas, cached, cached + size), range(size))
        shift = int(self._facts.shift)
        first = max(pending - shift, 0)
        shown = tuple(self._position(canvas, cached + row + shift) for row in range(first, whole))
        return PassPlan(self.rows(canvas, cached, canvas.end), range(pending), first, shown)

    def rows(self, canvas: Canvas, begin: int, end: int) -> Rows:
        """The rows of positions `begin` to `end`, in groups."""
        chain = Rows.chain(canvas.tokens[begin:end], begin)
        positions = chain.positions
        if self._facts.context == "full":
            groups = np.zeros(len(positions), np.int64)
        elif self._facts.context == "block":
            groups = positions // self._facts.block
        else:
            groups = np.where(positions < canvas.start, -1, 0)
        return Rows(chain.tokens, positions, chain.parents, groups=groups)

    @staticmethod
    def _position(canvas: Canvas, position: int) -> int:
        """The position if the pass predicts it, else -1."""
        return position if canvas.awaited(position) else -1


def unit_of(facts: DiffusionFacts) -> int:
    """The tokens that the cache keeps together."""
    return facts.block if facts.context == "block" else 1
