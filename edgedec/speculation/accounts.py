"""The gain of a call, for each drafter and for the budget. Times come from the cost model, in a call with the other
sequences.

A token is worth its cost without drafts: the seconds of a call of one row per sequence, divided by the sequences, plus
the time outside of calls. A drafted row costs its share of the time that all drafted rows added to the call.
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

# The share of a call below which a drafter's own time is ignored.
_NEGLIGIBLE = 0.002
# The drafters' time for their first call counts up to this share of a call.
_OPENING = 0.1
# The drafters' time for a call is capped at this multiple of its mean, after so many calls.
_SPIKE, _AFTER = 4.0, 8
# The growth of the minimum time per call, so that old minima fade; its least share of the measured time.
_RISE, _OWN = 1.05, 0.2
# The share of reading a prompt that drafters may take to read it as well.
_READING = 0.02


@dataclass(frozen=True)
class Prices:
    """The seconds that a token is worth and that a drafted row costs; call: the seconds of this sequence's call
    alone."""

    token: float
    row: float
    call: float

    @classmethod
    def of(cls, costs: Costs, sequences: int, total: int, drafted: int, call: float, outside: float = 0.0) -> Prices:
        """In a call of `total` rows, `drafted` of them drafted, which takes `call` seconds without these; all 0 while
        no costs are known. outside: seconds outside of the call per sequence."""
        seconds = costs.seconds
        last = len(seconds) - 1
        if not last:
            return cls(0.0, 0.0, 0.0)
        row = (seconds[min(total, last)] - seconds[min(total - drafted, last)]) / drafted if drafted else 0.0
        # The time above the curve is attention to the text before the rows; each row attends to it.
        text = max(0.0, call - seconds[min(sequences, last)]) / sequences
        return cls(call / sequences + outside, row + (1 - READING) * text if drafted else 0.0, seconds[1] + text)


def plain_seconds(costs: Costs, sequences: int, context: int) -> float:
    """The seconds of a call of one row per sequence, each after `context` tokens."""
    return costs.seconds[min(sequences, len(costs.seconds) - 1)] + costs.per_cell * sequences * context


def judge_all(
    found: Proposals,
    kept: Sequence[int],
    step: StepResult,
    members: Sequence[DrafterStats],
    budget: Budget,
    prices: Prices,
) -> None:
    """Test all guesses against the picked tokens; record their expected and actual acceptance, and their gains."""
    chances = found.merger.chances
    path = found.merger.test(step.picked, [member.calibration for member in members])
    budget.add_guesses(sum(chances[node] for node in kept), len(set(path) & set(kept)))
    judge(found, kept, path, members, prices)
    judge_drawn(found, step, prices)


def judge(
    found: Proposals, kept: Sequence[int], path: Sequence[int], members: Sequence[DrafterStats], prices: Prices
) -> None:
    """Record each drafter's expected gain: a node counts for the first of its drafters, by its calibrated chance, which
    is less noisy than the outcome. path: the nodes that were right."""
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
    """Record the gain of the drafter whose tokens were drawn: its rows are the first."""
    if found.drawn_by is None:
        return
    rows = found.drawn_rows
    accepted = sum(0 < row <= rows for row in step.path)
    found.drawn_by.add_drawn(rows, accepted)
    found.drawn_by.add_gain(accepted * prices.token - rows * prices.row, _NEGLIGIBLE * prices.call)


def settle(budget: Budget, step: StepResult, own: int, spent: float, prices: Prices) -> float:
    """Update the budget after a call with `own` drafted rows, none of them forced; drafters took `spent` seconds.
    Returns the net gain in seconds."""
    accepted = len(step.picked) - 1
    budget.add_call(prices.token, 1 + accepted if own else 1, spent)
    if not own:
        return -spent
    saved, cost = prices.token * accepted, prices.row * own
    budget.add_draft(saved, cost)
    return saved - cost - spent


class UsualTime:
    """The time of drafting per call. `idle`: the recent minimum, without expensive drafters."""

    def __init__(self) -> None:
        self.idle = self._mean = 0.0
        self._calls = 0

    def proposed(self, spent: float, call: float, costly: float) -> float:
        """Add the time of a proposal and of learning from its call; costly: the expensive drafters' part. Returns the
        rest."""
        own = max(spent - costly, _OWN * spent)
        self.idle = min(own, _RISE * self.idle) if self.idle else min(own, call)
        return own

    def cut(self, spent: float, call: float, opening: float = 0.0) -> float:
        """The part of `spent` that counts for one more call, which takes `call` without drafts. The one-time cost of
        opening drafters is excluded: in the first call, and in the first proposals of drafters, which took `opening`. A
        spike is cut, because another program had the core."""
        spent -= max(opening - call, 0.0)
        if not self._calls:
            spent = min(spent, _OPENING * call)
        if self._calls > _AFTER:
            spent = min(spent, _SPIKE * self._mean)
        self._calls += 1
        self._mean += (spent - self._mean) * max(SMOOTH, 1 / self._calls)
        return spent


def reading_share(step: StepResult, tokens: int) -> float:
    """The seconds that drafters may take to read a prompt of `tokens` tokens that ends in this call: a share of the
    model's time."""
    return _READING * step.seconds * tokens / len(step.rows) if step.root else 0.0
