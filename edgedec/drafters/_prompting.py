"""Prompt rows of a drafter (parallel prompt decoding): rows below a draft whose results are the next call's guesses."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from edgedec.decoding.context import Context
from edgedec.decoding.draft import Draft
from edgedec.decoding.messages import Completed, Request


class PromptPlan(NamedTuple):
    """The basis for choosing prompt rows. chances: for each drafted token, the probability that its whole path is
    accepted; room: the most rows; row: the cost of one, in tokens of plain decoding."""

    chances: Sequence[float]
    room: int
    row: float


@runtime_checkable
class Prompting(Protocol):
    """A drafter whose guesses are the results of prompt rows of the call before."""

    def append(self, context: Context, draft: Draft, plan: PromptPlan) -> Generator[Request, Completed, Draft]:
        """The draft with prompt rows, if they pay."""
        ...
