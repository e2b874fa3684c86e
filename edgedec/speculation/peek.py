"""A look, for some microseconds, at what the text at hand lets expect, while the budget pays for nothing more.

Drafters that read nothing but the text need no outputs of a call, and the runtime's own take next to no time. So even
where a call is as quick as a few steps of Python, a copy that has begun is noticed.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from edgedec.decoding.allocation import Others, best_of_one
from edgedec.decoding.context import Context
from edgedec.drafters import Drafter
from edgedec.drafters._compiled import CompiledDrafter
from edgedec.runtime import Outputs
from edgedec.speculation.budget import Budget
from edgedec.speculation.compiled import CompiledMerger
from edgedec.speculation.costs import Costs
from edgedec.speculation.cutting import offer_of
from edgedec.speculation.proposals import Proposals

# Calls between looks that found nothing; the most tokens, the least chance of a path, and of the first token.
_PAUSE, _NODES, _LEAST, _FIRST = 3, 16, 0.1, 0.5


class Peek:
    """`drafters`: those that it looks with, and that may draft if it found something."""

    def __init__(self, merger: CompiledMerger | None, drafters: Sequence[Drafter]) -> None:
        found = {n: d for n, d in enumerate(drafters) if isinstance(d, CompiledDrafter) and d.outputs == Outputs()}
        self._merger, self._numbers = merger, sum(1 << number for number in found)
        self.drafters, self._left = list(found.values()), 0

    def promising(self, context: Context, nodes: int, costs: Costs, budget: Budget) -> bool:
        """Would a draft pay, beside no other sequence? The time that the answer takes is the budget's."""
        self._left -= 1
        if self._merger is None or not self._numbers or self._left >= 0:
            return False
        began = perf_counter()
        found = self._pays(self._merger, context, min(nodes, _NODES), costs, budget.trust)
        self._left = 0 if found else _PAUSE
        budget.add_call(0.0, 0, perf_counter() - began)
        return found

    def _pays(self, merger: CompiledMerger, context: Context, nodes: int, costs: Costs, trust: float) -> bool:
        merger.propose(context, nodes, _LEAST, self._numbers)
        order = merger.best_first()
        if not order or merger.chances[order[0]] < _FIRST:
            return False
        offer = offer_of(Proposals(merger), context, order, costs, trust)
        return best_of_one(offer, Others(), costs.most).nodes > 0
