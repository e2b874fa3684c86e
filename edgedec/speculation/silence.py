"""Silence: calls without drafts, at next to no cost, while the budget pays for nothing more.

Drafters that read nothing but the text need no outputs of a call, and the runtime's own look at it in one call: what
they expected at the last look is tested by what came, and how many of their guesses would pay now is counted. So even
where a call is as quick as a few steps of Python, a copy that has begun is noticed. Between two looks nothing is done
at all, but to notice where the text begins to repeat itself (`following`): then the next look is at once. How many
calls that are follows from what a look takes, with all that it slows down (`outside`), and what a call costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from time import perf_counter

from edgedec.decoding.allocation import READING
from edgedec.decoding.context import Context
from edgedec.decoding.draft import Draft, Drafter
from edgedec.drafters._tables.compiled import CompiledDrafter
from edgedec.runtime import Outputs, WatchPrices
from edgedec.speculation.budget import ALLOWANCE, Budget
from edgedec.speculation.compiled import CompiledMerger
from edgedec.speculation.costs import Costs
from edgedec.speculation.finds import Finds
from edgedec.speculation.following import Following
from edgedec.speculation.outside import OutsideCalls, with_outside

RESTING = "silent, drafting has not paid lately"
# The share of the time of calls that looks may take; the most calls between two; a look whose guesses were not run is
# followed by so many times as many; after a find each pause is so many times the one before.
_SHARE, _LONGEST, _IN_VAIN, _GROWS = 0.5 * ALLOWANCE, 256, 2, 4
# So many silent calls at least pass until the time of another one is learned.
_MEASURED = 16
# The most tokens of a look, the least chance of a path, and of the first token.
_NODES, _LEAST, _FIRST = 16, 0.1, 0.5
# The most tokens of a find, while nothing has come true in this text, and after finds that failed.
_FEW, _FEWEST = 4, 3
# What a look takes: at first, and how fast the mean follows; one counts for so many usual ones at most.
_LOOK, _SMOOTH, _SPIKE = 5e-6, 0.25, 3.0


class Silence:
    """`drafters`: those that look, and that may draft if they found something. asleep: nothing is done in this call;
    calls: those that were silent."""

    def __init__(self, merger: CompiledMerger | None, drafters: Sequence[Drafter]) -> None:
        found = {n: d for n, d in enumerate(drafters) if isinstance(d, CompiledDrafter) and d.outputs == Outputs()}
        self.drafters, self._numbers = list(found.values()), sum(1 << number for number in found)
        self._merger = merger if found else None
        self.asleep, self.calls = False, 0
        self._left = self._slept = self._measured_at = 0
        self._until = 0  # calls until a look is due
        self._look_s, self._took, self._interval = _LOOK, 0.0, _LONGEST
        self._following, self._growing = Following(), False
        self._rests, self._most = False, _FEW  # finds have lost of late; the most nodes of a find in this text
        # In the next calls, until it wakes, no proposal is asked for.
        self.rests = Draft(why=RESTING, rests=self._over)

    def sleeps(self, ids: Sequence[int]) -> bool:
        """Is the next call slept through, after this text?"""
        if self._left > 0 and self._merger is not None and self._following.repeats(ids):
            self._left = self._until = 0
        self.asleep = self._left > 0
        self._until -= 1
        if self.asleep:
            self._left -= 1
            self._slept += 1
        return self.asleep

    def _over(self, ids: Sequence[int]) -> bool:
        """Is the rest over, before the next call?"""
        if self._merger is not None and self._following.repeats(ids):
            self._left = self._until = 0
        if self._left <= 0:
            return True
        self._until -= 1
        self._left -= 1
        self._slept += 1
        return False

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
        """Another text begins: it is looked at before its first token, unless finds have lost of late."""
        if not self._rests:
            self._left = self._until = 0
        self.asleep, self._interval, self._growing, self._most = False, _LONGEST, False, _FEW
        self._following.reset()
        if self._rests:
            self._following.doubt()

    def rest(self, plain: float, budget: Budget, needed: float) -> None:
        """Sleep until the next look, or until drafting, which takes `needed`, is paid for; plain: seconds of a call.
        After a find, a copy that was left may go on: intervals grow from one call to those that pay for a look."""
        recovered = ceil((needed - budget.left) / (ALLOWANCE * plain)) if plain > 0 else 1
        if self._until <= 0:
            longest = min(self._pause(plain), _LONGEST)
            self._until = min(self._interval, longest) if self._growing else longest
            self._interval = min(_GROWS * self._interval, longest) if self._growing else longest
            self._growing = self._growing and self._interval < longest
        self._left = max(0, min(self._until, recovered) - 1)

    def refused(self, plain: float) -> None:
        """What a look found was not drafted."""
        self._left = self._until = _IN_VAIN * min(self._pause(plain), _LONGEST)
        self._interval, self._growing = _LONGEST, False
        self._following.looked(False)

    def drafted(self, nodes: int, accepted: int, spent: float, gain: float, finds: Finds) -> None:
        """So many nodes that a look found were drafted: it took `spent` of the drafters' time, and gained so much on
        the whole. What other texts copied says little of this one: a first find is small, those after it grow while
        they come true."""
        if 2 * accepted >= nodes:
            self._most = min(2 * self._most, _NODES)
        elif 4 * accepted < nodes:
            self._most = max(self._most // 2, _FEWEST)
        if rest := finds.add(spent, gain):
            self._left = self._until = rest
            self._rests, self._interval, self._growing = True, _LONGEST, False
            self._following.doubt()

    def promising(self, context: Context, nodes: int, costs: Costs, budget: Budget, outside: OutsideCalls) -> int:
        """How many guesses would pay, beside no other sequence. The time that the answer takes is the budget's."""
        if self._merger is None or self._until > 0:
            return 0
        self._rests = False
        began, length = perf_counter(), context.cache.length
        text = costs.per_cell * length
        seconds = with_outside(costs.seconds[: self._most + 2], outside.usual, costs.finds.takes)
        prices = WatchPrices(seconds, text, (1 - READING) * text, budget.trust, _FIRST)
        found = self._merger.watch(context, min(nodes, self._most), _LEAST, self._numbers, prices)
        took = min(perf_counter() - began, _SPIKE * self._look_s)
        self._took = took if len(context.ids) == length + 1 else 0.0  # a prompt takes longer to read
        budget.add_call(0.0, 0, took)
        outside.count(took)
        if self._growing:
            costs.finds.looked_again(found > 0)
        if found:
            self._interval, self._growing = 1, costs.finds.worth > self._look_s
        self._following.looked(found > 0)
        return found

    def looked(self, beyond: float, budget: Budget) -> None:
        """The last look took so much more than itself."""
        if self._took:
            beyond = min(beyond, _SPIKE * self._look_s)
            self._look_s += _SMOOTH * (self._took + beyond - self._look_s)
            budget.add_call(0.0, 0, beyond)
            self._took = 0.0

    def _pause(self, plain: float) -> int:
        """The calls that a look is paid by; where nobody looks there is nothing to wake for but the budget."""
        if self._merger is None:
            return _LONGEST
        return ceil(self._look_s / (_SHARE * plain)) if plain > 0 else 1
