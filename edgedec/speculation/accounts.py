"""What a call was worth: to each drafter, and to the budget. Times are by the cost model, beside the other sequences.

A token is worth what it costs without drafts: a call of one row for each sequence, divided by the sequences, and what
passes outside of calls. A drafted
row costs its share of what all drafted rows added to the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgedec.decoding.allocation import READING
from edgedec.decoding.messages import StepResult
from edgedec.speculation.backoff import SMOOTH, DrafterStats
from edgedec.speculation.budget import Budget
from edgedec.speculation.costs import Costs
from edgedec.speculation.proposals import Proposals

# A share of a call below which a drafter's own time does not matter.
_NEGLIGIBLE = 0.002
# Of the drafters' time for their first call so much of a call counts.
_OPENING = 0.1
# The drafters' time for a call counts for so many usual ones at most, after so many calls.
_SPIKE, _AFTER = 4.0, 8
# How fast the least time of a call is forgotten; it is such a share of the time at least.
_RISE, _OWN = 1.05, 0.2
# The share of reading a prompt that drafters may take to read it as well.
_READING = 0.02


@dataclass(frozen=True)
class Prices:
    """Seconds that a token is worth, and that a drafted row costs; call: those of a call of this sequence alone."""

    token: float
    row: float
    call: float

    @classmethod
    def of(cls, costs: Costs, sequences: int, total: int, drafted: int, call: float, outside: float = 0.0) -> Prices:
        """In a call of `total` rows, `drafted` of them drafted, which takes `call` seconds without these; all 0 while
        nothing is known. outside: what passes outside of it for each sequence."""
        seconds = costs.seconds
        last = len(seconds) - 1
        if not last:
            return cls(0.0, 0.0, 0.0)
        row = (seconds[min(total, last)] - seconds[min(total - drafted, last)]) / drafted if drafted else 0.0
        # What lies beyond the curve is the text before the rows; each of them attends to it.
        text = max(0.0, call - seconds[min(sequences, last)]) / sequences
        return cls(call / sequences + outside, row + (1 - READING) * text if drafted else 0.0, seconds[1] + text)


def plain_seconds(costs: Costs, sequences: int, context: int) -> float:
    """Of a call of one row for each sequence, after so many tokens each."""
    return costs.seconds[min(sequences, len(costs.seconds) - 1)] + costs.per_cell * sequences * context


def judge_all(
    found: Proposals,
    kept: Sequence[int],
    step: StepResult,
    members: Sequence[DrafterStats],
    budget: Budget,
    prices: Prices,
) -> None:
    """Test all guesses by what came, and count what they were expected to bring, did bring, and gained."""
    chances = found.merger.chances
    path = found.merger.test(step.picked, [member.calibration for member in members])
    budget.add_guesses(sum(chances[node] for node in kept), len(set(path) & set(kept)))
    judge(found, kept, path, members, prices)
    judge_drawn(found, step, prices)


def judge(
    found: Proposals, kept: Sequence[int], path: Sequence[int], members: Sequence[DrafterStats], prices: Prices
) -> None:
    """What each drafter gained, as far as it was to be expected: a node counts for the first of its drafters, by its
    chance, which calibration keeps true. path: the nodes that came true."""
    guesses, chances, ran = found.merger.guesses, found.merger.chances, set(kept)
    gains = dict.fromkeys(range(len(members)), 0.0)
    for node in kept:
        _count(guesses[node], members, accepted=False)
        gains[guesses[node][0][0]] += chances[node] * prices.token - prices.row
    if found.prompts:
        gains[found.prompting] -= found.prompts * prices.row
    for node in path:
        if node in ran:
            _count(guesses[node], members, accepted=True)
    for number, member in enumerate(members):
        if member is not found.drawn_by:
            member.add_gain(gains[number], _NEGLIGIBLE * prices.call)


def _count(guesses: Sequence[tuple[int, int]], members: Sequence[DrafterStats], accepted: bool) -> None:
    for number, _ in guesses:
        members[number].proposed += not accepted
        members[number].accepted += accepted


def judge_drawn(found: Proposals, step: StepResult, prices: Prices) -> None:
    """What the drafter gained that drew: its rows are the first."""
    if found.drawn_by is None:
        return
    rows = found.drawn_rows
    accepted = sum(0 < row <= rows for row in step.path)
    found.drawn_by.add_drawn(rows, accepted)
    found.drawn_by.add_gain(accepted * prices.token - rows * prices.row, _NEGLIGIBLE * prices.call)


def settle(budget: Budget, step: StepResult, own: int, spent: float, prices: Prices) -> float:
    """Update the budget after a call with `own` drafted rows, none of them forced; drafters took `spent` seconds.
    Returns what all of it gained."""
    accepted = len(step.picked) - 1
    budget.add_call(prices.token, 1 + accepted if own else 1, spent)
    if not own:
        return -spent
    saved, cost = prices.token * accepted, prices.row * own
    budget.add_draft(saved, cost)
    return saved - cost - spent


class UsualTime:
    """What drafting takes a call. `idle`: the least of late, without drafters whose time matters."""

    def __init__(self) -> None:
        self.idle = self._mean = 0.0
        self._calls = 0

    def proposed(self, spent: float, call: float, costly: float) -> float:
        """A proposal and what was learned from its call took so long; costly: drafters whose time matters. Returns what
        the others took."""
        own = max(spent - costly, _OWN * spent)
        self.idle = min(own, _RISE * self.idle) if self.idle else min(own, call)
        return own

    def cut(self, spent: float, call: float, opening: float = 0.0) -> float:
        """What of these seconds counts for one more call, which takes `call` without drafts. In the first one drafters
        open what they need: that is done once, and says nothing of drafting; and so do the first proposals of some,
        which took `opening`. A spike is cut: something else had the core."""
        spent -= max(opening - call, 0.0)
        if not self._calls:
            spent = min(spent, _OPENING * call)
        if self._calls > _AFTER:
            spent = min(spent, _SPIKE * self._mean)
        self._calls += 1
        self._mean += (spent - self._mean) * max(SMOOTH, 1 / self._calls)
        return spent


def reading_share(step: StepResult, tokens: int) -> float:
    """Seconds that drafters may take to read a prompt of so many tokens, which the call's first rows end: a share of
    what the model takes."""
    return _READING * step.seconds * tokens / len(step.rows) if step.root else 0.0
