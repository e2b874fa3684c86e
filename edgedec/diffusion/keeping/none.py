"""No cache: every pass runs the whole text again. The oracle of the other ways, and all that is exact for a model in
which every row sees every other (context `full`)."""

from __future__ import annotations

from edgedec.cache import Cache
from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.host import DiffusionHost, MethodFacts
from edgedec.diffusion.keeping._rows import BlockRows
from edgedec.diffusion.seams import PassPlan
from edgedec.errors import RuntimeUnavailable

FACTS = MethodFacts(exact=True)


def make(host: DiffusionHost) -> WithoutCache:
    return WithoutCache(host)


class WithoutCache:
    def __init__(self, host: DiffusionHost) -> None:
        self._rows, self._host = BlockRows(host), host
        self._pass = (-1, -1)

    def plan(self, canvas: Canvas, cache: Cache) -> PassPlan:
        now = (canvas.start, canvas.step)
        if now != self._pass:
            self._pass = now
            cache.truncate(0)
        if self._host.facts.context == "full":
            return self._whole(canvas)
        plan = self._rows.plan(canvas, cache)
        return plan if not plan.shown else PassPlan(plan.rows, 0, plan.logits_from, plan.shown)

    def _whole(self, canvas: Canvas) -> PassPlan:
        """One group of all positions."""
        n, shift = len(canvas.tokens), int(self._host.facts.shift)
        if n > (most := self._host.capabilities.largest_call):
            raise RuntimeUnavailable(f"diffusion: a canvas of {n} tokens is one call, and this engine takes {most}")
        first = max(canvas.start - shift, 0)
        positions = range(first + shift, n + shift)
        shown = tuple(p if canvas.start <= p < canvas.end and not canvas.known(p) else -1 for p in positions)
        return PassPlan(self._rows.rows(canvas, 0, n), 0, first, shown)
