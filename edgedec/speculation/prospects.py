"""The drafters that can pay at all: the time of a proposal against its largest possible gain.

A head with layers of its own costs a call of these layers, and Python's time, for each token ahead. Before its first
use that is estimated from its size (`Effort`) and the model's measured speed; afterwards it is measured. A head that
would lose even with nearly perfect guesses is not opened and gets no results."""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.decoding.draft import Drafter
from edgedec.speculation.backoff import DrafterStats
from edgedec.speculation.costs import Costs
from edgedec.speculation.readers import Readers
from edgedec.speculation.selection import SURE

# Proposals until measured times count, as the first ones include one-time work.
_MEASURED = 4


def own_seconds(member: DrafterStats, costs: Costs) -> float:
    """The seconds of a proposal and of learning from its call: measured, or estimated before that."""
    if member.proposals >= _MEASURED:
        return member.propose_s + member.observe_s
    effort = member.drafter.effort
    return 0.0 if effort is None else effort.seconds(costs.seconds[1])


def hopeless(member: DrafterStats, costs: Costs) -> bool:
    """Whether a drafter would lose even with nearly all guesses right. Only for drafters with a declared effort, once
    the cost of more rows is known.

    Worked example: 0.1 ms a call, 0.13 for two rows, 0.17 for three; 0.2 ms for two tokens ahead: 1.98 tokens in
    0.33 ms and 2.94 in 0.37 ms are no more than one in 0.1 ms.
    """
    effort = member.drafter.effort
    if effort is None or not costs.covers(1):
        return False
    seconds, own = costs.seconds, own_seconds(member, costs)
    tokens, path = 1.0, 1.0
    for rows in range(2, min(effort.depth + 1, len(seconds) - 1) + 1):
        path *= SURE
        tokens += path
        if tokens * seconds[1] > seconds[rows] + own:
            return False
    return True


def leave_out(members: Sequence[DrafterStats], costs: Costs, readers: Readers, fixed: int) -> None:
    """Exclude drafters that cannot pay from proposing and from reading calls; fixed: all are used."""
    for member in members:
        member.hopeless = not fixed and hopeless(member, costs)
    readers.leave_out([member.drafter for member in members if member.hopeless])


def unknown(drafter: Drafter, costs: Costs) -> bool:
    """Whether it is still unknown if this drafter can pay; a drafter with a declared effort is not opened until
    then."""
    return drafter.effort is not None and not costs.covers(1)
