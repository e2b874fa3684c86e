"""Parts of a block in turn: within a part only its own rows are run, against keys of the rest that are out of date.

Fast-dLLM v2 (arXiv:2509.26328, its public code): parts of 8 are filled one after another. The whole block is
run until the part's first token is known (with shift the row before the part predicts it), then only the rows of the
part; what the last whole pass computed of the block's other rows is kept meanwhile. Lossy: these have not seen what was
filled since. It pays for blocks that are long beside the part; for blocks of 8 it is `keep=block`.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from edgedec.cache import Cache
from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.host import DiffusionHost, MethodFacts
from edgedec.diffusion.keeping._rows import BlockRows
from edgedec.diffusion.seams import PassPlan
from edgedec.plugins import Opt
from edgedec.runtime import Rows

FACTS = MethodFacts(contexts=("causal", "block"), stale=True, final=True, paper="arXiv:2509.26328")


def make(host: DiffusionHost, size: Annotated[int, Opt("Tokens of a part; lossy.", 1)] = 8) -> SubBlocks:
    return SubBlocks(host, size)


class SubBlocks:
    """Example, a block of 6 from position 10 on, parts of 3, shift: a whole pass runs (9) 10 … 15 and keeps 13 14 15;
    once 10 is known, passes run 10 11 12 only, which show 11 and 12."""

    def __init__(self, host: DiffusionHost, size: int) -> None:
        self._rows, self._size, self._shift = BlockRows(host), size, int(host.facts.shift)
        # The part whose rest is kept, the block's end then, and the length of what is exact below it.
        self._part, self._base = (-1, -1), -1

    def plan(self, canvas: Canvas, cache: Cache) -> PassPlan:
        first = canvas.masked()[0]
        start = first - (first - canvas.start) % self._size
        end = min(start + self._size, canvas.end)
        if (start, canvas.end) == self._part and canvas.known(start):
            return self._of_part(canvas, start, end)
        if 0 <= self._base < cache.length:
            cache.truncate(self._base)
        self._rows.needed(canvas, cache)
        plan = self._rows.plan(canvas, cache)
        if not plan.shown:
            return plan
        self._part, self._base = (start, canvas.end), canvas.start
        rest = [at for at, i in enumerate(plan.rows.positions.tolist()) if canvas.start <= i and not start <= i < end]
        shown = tuple(position if start <= position < end else -1 for position in plan.shown)
        return PassPlan(plan.rows, [*plan.commit, *rest], plan.logits_from, shown)

    def _of_part(self, canvas: Canvas, start: int, end: int) -> PassPlan:
        """A pass over the rows of a part."""
        size = end - start
        tokens, positions = np.array(canvas.tokens[start:end], np.int64), np.arange(start, end)
        rows = Rows(tokens, positions, np.arange(-1, size - 1), groups=np.zeros(size, np.int64))
        shown = [i + self._shift for i in range(start, end)]
        return PassPlan(rows, (), 0, tuple(i if i < end and not canvas.known(i) else -1 for i in shown))
