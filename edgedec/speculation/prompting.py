"""Prompt rows (PPD, S23) below a draft that was chosen: which drafter's they are, what they may cost, what they did."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from edgedec.decoding.allocation import Offer
from edgedec.decoding.context import Context
from edgedec.decoding.step import Completed, Request
from edgedec.drafters import Draft
from edgedec.speculation.backoff import DrafterStats
from edgedec.speculation.proposals import Proposals


@dataclass(frozen=True)
class PromptPlan:
    """What prompt rows are chosen by. chances: of each drafted token, that its whole path is accepted; room: rows at
    most; row: what one costs, in tokens of plain decoding."""

    chances: Sequence[float]
    room: int
    row: float


@runtime_checkable
class Prompting(Protocol):
    """A drafter whose guesses come of prompt rows of the call before."""

    def append(self, context: Context, draft: Draft, plan: PromptPlan) -> Generator[Request, Completed, Draft]:
        """The draft with prompt rows, if they pay."""
        ...


def prompting(members: Sequence[DrafterStats]) -> int:
    """The number of the drafter that runs prompt rows; -1: there is none."""
    return next((number for number, member in enumerate(members) if isinstance(member.drafter, Prompting)), -1)


def with_prompt_rows(
    members: Sequence[DrafterStats],
    found: Proposals,
    kept: Sequence[int],
    draft: Draft,
    context: Context,
    room: int,
    row: float,
) -> Generator[Request | Offer, Any, Draft]:
    """The draft of the nodes `kept`, with prompt rows of the drafter `found.prompting`; their number is noted. Not
    below rows that were drawn, or that have been through the first blocks."""
    drafter = members[found.prompting].drafter
    if not isinstance(drafter, Prompting) or draft.hidden is not None or found.drawn is not None:
        return draft
    chances = [found.merger.chances[node] for node in sorted(kept)]
    draft = yield from found.clock.run(drafter.append(context, draft, PromptPlan(chances, room, row)))
    found.prompts = 0 if draft.prompts is None else len(draft.prompts.parents)
    return draft
