"""Prompt rows of a drafter (PPD): rows below a draft whose results are the guesses of the next call."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from edgedec.decoding.context import Context
from edgedec.decoding.draft import Draft
from edgedec.decoding.messages import Completed, Request


class PromptPlan(NamedTuple):
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
