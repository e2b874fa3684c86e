"""Which drafters can pay at all: what a proposal takes against the most that it could bring.

A head with layers of its own takes a call of these layers, and Python's time, for each token ahead. Before it was ever
used that follows from its size (`Effort`) and the measured speed of the model; afterwards from what was measured. Where
it would lose even if nearly all of its guesses came true, it is not opened and shown nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.decoding.draft import Drafter
from edgedec.speculation.backoff import DrafterStats
from edgedec.speculation.costs import Costs
from edgedec.speculation.readers import Readers
from edgedec.speculation.selection import SURE

# Proposals until what was measured counts: the first ones open what they need.
_MEASURED = 4


def own_seconds(member: DrafterStats, costs: Costs) -> float:
    """What a proposal takes with what was learned from the call before it: measured, or else to be expected."""
    if member.proposals >= _MEASURED:
        return member.propose_s + member.observe_s
    effort = member.drafter.effort
    return 0.0 if effort is None else effort.seconds(costs.seconds[1])


def hopeless(member: DrafterStats, costs: Costs) -> bool:
    """Would it lose even with nearly all guesses right? Said only of drafters that state their effort, once it is known
    what more rows cost.

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
    """Neither show calls to drafters that cannot pay, nor use them; fixed: all are used."""
    for member in members:
        member.hopeless = not fixed and hopeless(member, costs)
    readers.leave_out([member.drafter for member in members if member.hopeless])


def unknown(drafter: Drafter, costs: Costs) -> bool:
    """Is it not known yet whether this drafter can pay? One that is costly to open waits until it is."""
    return drafter.effort is not None and not costs.covers(1)
