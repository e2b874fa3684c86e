"""No cache: every pass runs the whole text again. The oracle of the other ways, and all that is exact for a model in
which every row sees every other (context `full`)."""

from __future__ import annotations

from edgedec.cache import Cache
from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.host import DiffusionHost, MethodFacts
from edgedec.diffusion.keeping._canvas_rows import canvas_plan
from edgedec.diffusion.keeping._rows import BlockRows
from edgedec.diffusion.seams import PassPlan

FACTS = MethodFacts(exact=True)


def make(host: DiffusionHost) -> WithoutCache:
    return WithoutCache(host)


class WithoutCache:
    def __init__(self, host: DiffusionHost) -> None:
        self._rows, self._host = BlockRows(host), host
        self._pass: tuple[int, int] | None = None

    def plan(self, canvas: Canvas, cache: Cache) -> PassPlan:
        now = (canvas.start, canvas.step)
        if now != self._pass:
            self._pass = now
            cache.truncate(0)
        if self._host.facts.context == "full":
            return canvas_plan(self._host, canvas, range(len(canvas.tokens)))
        plan = self._rows.plan(canvas, cache)
        return plan if not plan.shown else PassPlan(plan.rows, (), plan.logits_from, plan.shown)
