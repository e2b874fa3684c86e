"""Silence: calls without drafts, at next to no cost, while the budget pays for nothing more.

Drafters that read nothing but the text need no outputs of a call, and the runtime's own look at it in one call: what
they expected at the last look is tested by what came, and how many of their guesses would pay now is counted. So even
where a call is as quick as a few steps of Python, a copy that has begun is noticed. Between two looks nothing is done
at all. How many calls that are follows from what a look takes and what a call costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from time import perf_counter

from edgedec.decoding.allocation import READING
from edgedec.decoding.context import Context
from edgedec.drafters import Drafter
from edgedec.drafters._compiled import CompiledDrafter
from edgedec.runtime import Outputs, WatchPrices
from edgedec.speculation.budget import ALLOWANCE, Budget
from edgedec.speculation.compiled import CompiledMerger
from edgedec.speculation.costs import Costs

# The share of the time of calls that looks may take; the most calls between two; a look whose guesses were not run is
# followed by so many times as many; and the calls until the second look at a text.
_SHARE, _LONGEST, _IN_VAIN, _FRESH = 0.5 * ALLOWANCE, 16, 4, 2
# So many silent calls at least pass until the time of another one is learned.
_MEASURED = 16
# The most tokens of a look, the least chance of a path, and of the first token.
_NODES, _LEAST, _FIRST = 16, 0.1, 0.5
# What a look takes: at first, and how fast the mean follows; one counts for so many usual ones at most.
_LOOK, _SMOOTH, _SPIKE = 5e-6, 0.1, 3.0


class Silence:
    """`drafters`: those that look, and that may draft if they found something. asleep: nothing is done in this call;
    calls: those that were silent."""

    def __init__(self, merger: CompiledMerger | None, drafters: Sequence[Drafter]) -> None:
        found = {n: d for n, d in enumerate(drafters) if isinstance(d, CompiledDrafter) and d.outputs == Outputs()}
        self.drafters, self._numbers = list(found.values()), sum(1 << number for number in found)
        self._merger = merger if found else None
        self.asleep, self.calls = False, 0
        self._left = self._slept = self._measured_at = 0
        self._look_s, self._interval = _LOOK, _FRESH

    def sleeps(self) -> bool:
        """Is the next call slept through?"""
        self.asleep = self._left > 0
        if self.asleep:
            self._left -= 1
            self._slept += 1
        return self.asleep

    def passed(self) -> int:
        """The silent calls since this was asked last, the one that ends now among them."""
        passed, self._slept = 1 + self._slept, 0
        self.calls += passed
        return passed

    def measures(self) -> bool:
        """Is the time of this call to be learned?"""
        due = self.calls - self._measured_at >= _MEASURED
        if due:
            self._measured_at = self.calls
        return due

    def reset(self) -> None:
        """Another text begins: it is looked at before its first token."""
        self._left, self.asleep, self._interval = 0, False, _FRESH

    def rest(self, plain: float, budget: Budget, needed: float) -> None:
        """Sleep until the next look, or until drafting, which takes `needed`, is paid for; plain: seconds of a call.
        After a find, a copy that was left may go on: intervals grow from one call to those that pay for a look."""
        recovered = ceil((needed - budget.left) / (ALLOWANCE * plain)) if plain > 0 else 1
        longest = min(self._pause(plain), _LONGEST)
        self._left = max(0, min(self._interval, longest, recovered) - 1)
        self._interval = min(2 * self._interval, longest)

    def refused(self, plain: float) -> None:
        """What a look found was not drafted."""
        self._left = _IN_VAIN * min(self._pause(plain), _LONGEST)
        self._interval = _LONGEST

    def promising(self, context: Context, nodes: int, costs: Costs, budget: Budget) -> bool:
        """Would a draft pay, beside no other sequence? The time that the answer takes is the budget's."""
        if self._merger is None:
            return False
        began, length = perf_counter(), context.cache.length
        text = costs.per_cell * length
        prices = WatchPrices(costs.seconds, text, (1 - READING) * text, budget.trust, _FIRST)
        found = self._merger.watch(context, min(nodes, _NODES), _LEAST, self._numbers, prices)
        took = min(perf_counter() - began, _SPIKE * self._look_s)
        if len(context.ids) == length + 1:  # a prompt takes longer to read
            self._look_s += _SMOOTH * (took - self._look_s)
        budget.add_call(0.0, 0, took)
        self._interval = 1 if found else self._interval
        return found > 0

    def _pause(self, plain: float) -> int:
        """The calls that a look is paid by."""
        return ceil(self._look_s / (_SHARE * plain)) if plain > 0 else 1
