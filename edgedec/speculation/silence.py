"""Silence: calls without drafts, at almost no cost, while the budget does not pay for proposals.

Table drafters need only the text, and the runtime's own tables are checked in one call: it tests the guesses of the
last check against the text, and counts how many current guesses would pay. So the start of a copy is noticed even if a
forward is as quick as a few lines of Python. Between two checks the loop runs without the governor (`Draft.rest`). The
interval between checks follows from the time of a check, including the overhead that it causes (`outside`), and the
cost of a call."""

from __future__ import annotations

import sys
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
# The share of the calls' time that checks may take; the most calls between two checks; the factor on the pause after a
# check whose guesses did not run; the growth of the pauses after a find.
_SHARE, _LONGEST, _IN_VAIN, _GROWS = 0.5 * ALLOWANCE, 256, 2, 4
# The least number of silent calls between two whose time is measured.
_MEASURED = 16
# The most tokens of a check, the least chance of a path, and of the first token.
_NODES, _LEAST, _FIRST = 16, 0.1, 0.5
# The most tokens of a find before any was accepted in this text, and after finds that failed.
_FEW, _FEWEST = 4, 3
# The initial seconds of a check, the rate of the mean, and the cap in multiples of it.
_LOOK, _SMOOTH, _SPIKE = 5e-6, 0.25, 3.0


class Silence:
    """`drafters`: the table drafters that are checked, and that draft after a find. asleep: no check in this call;
    calls: the number of silent calls."""

    def __init__(self, merger: CompiledMerger | None, drafters: Sequence[Drafter]) -> None:
        found = {n: d for n, d in enumerate(drafters) if isinstance(d, CompiledDrafter) and d.outputs == Outputs()}
        self.drafters, self._numbers = list(found.values()), sum(1 << number for number in found)
        self._merger = merger if found else None
        self.asleep, self.calls = False, 0
        self._left = self._slept = self._measured_at = 0
        self._until = 0  # calls until a check is due
        self._look_s, self._took, self._interval = _LOOK, 0.0, _LONGEST
        self._following, self._growing = Following(), False
        self._rests, self._most = False, _FEW  # recent finds have lost; the most nodes of a find in this text
        self._length = sys.maxsize  # of the text at the last call of `sleeps`

    @property
    def rests(self) -> Draft:
        """The draft of a call without a check: the calls up to the next check need no proposal."""
        return Draft(why=RESTING, rest=self._left)

    def sleeps(self, ids: Sequence[int]) -> bool:
        """Whether the next call, after this text, runs without a check."""
        rested = max(0, min(self._left, len(ids) - self._length - 1))  # a token each
        self._length = len(ids)
        self._left -= rested
        self._until -= rested
        self._slept += rested
        if self._left > 0 and self._merger is not None and self._following.repeats(ids):
            self._left = self._until = 0
        self.asleep = self._left > 0
        self._until -= 1
        if self.asleep:
            self._left -= 1
            self._slept += 1
        return self.asleep

    def passed(self) -> int:
        """The number of silent calls since the last such call, including the one that ends now."""
        passed, self._slept = 1 + self._slept, 0
        self.calls += passed
        return passed

    def measures(self) -> bool:
        """Whether the time of this call is measured."""
        due = self.calls - self._measured_at >= _MEASURED
        if due:
            self._measured_at = self.calls
        return due

    def reset(self) -> None:
        """Prepare for another text: check before its first token, unless recent finds have lost."""
        if not self._rests:
            self._left = self._until = 0
        self.asleep, self._interval, self._growing, self._most = False, _LONGEST, False, _FEW
        self._length = sys.maxsize
        self._following.reset()
        if self._rests:
            self._following.doubt()

    def rest(self, plain: float, budget: Budget, needed: float) -> None:
        """Sleep until the next check, or until the budget pays for drafting, which takes `needed` seconds; plain:
        seconds of a call. After a find the copy may continue, so intervals grow from one call to the usual interval."""
        recovered = ceil((needed - budget.left) / (ALLOWANCE * plain)) if plain > 0 else 1
        if self._until <= 0:
            longest = min(self._pause(plain), _LONGEST)
            self._until = min(self._interval, longest) if self._growing else longest
            self._interval = min(_GROWS * self._interval, longest) if self._growing else longest
            self._growing = self._growing and self._interval < longest
        self._left = max(0, min(self._until, recovered) - 1)

    def refused(self, plain: float) -> None:
        """Note that the guesses of a check were not drafted."""
        self._left = self._until = _IN_VAIN * min(self._pause(plain), _LONGEST)
        self._interval, self._growing = _LONGEST, False
        self._following.looked(False)

    def drafted(self, nodes: int, accepted: int, spent: float, gain: float, finds: Finds) -> None:
        """Record a find's draft: `nodes` rows, the drafters' time `spent`, and the net gain, in seconds. Copies in
        other texts predict little about this one: the first find is small, later ones grow while they are accepted."""
        if 2 * accepted >= nodes:
            self._most = min(2 * self._most, _NODES)
        elif 4 * accepted < nodes:
            self._most = max(self._most // 2, _FEWEST)
        if rest := finds.add(spent, gain):
            self._left = self._until = rest
            self._rests, self._interval, self._growing = True, _LONGEST, False
            self._following.doubt()

    def promising(self, context: Context, nodes: int, costs: Costs, budget: Budget, outside: OutsideCalls) -> int:
        """The number of guesses that would pay in a call of this sequence alone. The time of the check is charged to
        the budget."""
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
        """Add the overhead that the last check caused besides its own time."""
        if self._took:
            beyond = min(beyond, _SPIKE * self._look_s)
            self._look_s += _SMOOTH * (self._took + beyond - self._look_s)
            budget.add_call(0.0, 0, beyond)
            self._took = 0.0

    def _pause(self, plain: float) -> int:
        """The calls that pay for a check; without table drafters there are no checks, only the budget's recovery."""
        if self._merger is None:
            return _LONGEST
        return ceil(self._look_s / (_SHARE * plain)) if plain > 0 else 1
