"""Causal attention over reordered rows: what is known comes first, masks after it.

    text      a b _ d _          rows   (cached: a)  b  d  _  _     positions 1 3 2 4

WeDLM (from its public code): rows see what is before them in this order, at their own positions, so every row
needs causal attention only. Known tokens that have no masked one before them are kept; their keys are those of reading
the text, exactly. For models that were trained so: causal context, unshifted.
"""

from __future__ import annotations

import numpy as np

from edgedec.cache import Cache
from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.host import DiffusionHost, MethodFacts
from edgedec.diffusion.seams import PassPlan
from edgedec.errors import UsageError
from edgedec.runtime import Rows

FACTS = MethodFacts(contexts=("causal",), final=True, paper="WeDLM")


def make(host: DiffusionHost) -> Reordered:
    if host.facts.shift:
        raise UsageError("--diffusion keep=reorder: is for models without shift; this one has it")
    return Reordered(host)


class Reordered:
    def __init__(self, host: DiffusionHost) -> None:
        self._can = host.capabilities

    def plan(self, canvas: Canvas, cache: Cache) -> PassPlan:
        cached, masked = cache.length, canvas.masked()
        front = masked[0]
        if front - cached > self._can.chunk(cached):
            size = self._can.chunk(cached)
            return PassPlan(Rows.chain(canvas.tokens[cached : cached + size], cached), range(size))
        known = [i for i in range(cached, canvas.end) if canvas.known(i)]
        order = np.array([*known, *masked], np.int64)
        tokens = np.array([canvas.tokens[i] for i in order.tolist()], np.int64)
        rows = Rows(tokens, order, np.arange(-1, len(order) - 1))
        return PassPlan(rows, range(front - cached), len(known), tuple(masked))
