"""Decoding steps that a runtime makes by itself: the call of the last token and of a draft below it, the choice of the
tokens that follow, and the commit of the first row, without Python in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from edgedec.cache.rows import Rows
from edgedec.runtime.sampler import TokenSampler

if TYPE_CHECKING:
    from edgedec.cache import Cache
    from edgedec.runtime.call import Adapter, Call, CallResult


class StepSettings(NamedTuple):
    """sampler: draws the tokens; None: the token of the largest logit is taken. rng: of the draws, PCG64; None: a draw
    needs no number. ends: the tokens that end the text."""

    cache: Cache
    sampler: TokenSampler | None
    rng: np.random.Generator | None
    adapter: Adapter | None
    ends: frozenset[int]


class StepCosts(NamedTuple):
    """Of the next calls. seconds: by rows, from 0 on; per_cell: of a cached token; plain, draft: outside of calls, of a
    token and of a draft; limit: the most drafted rows that could pay; least: the least chance of a path."""

    seconds: Sequence[float]
    per_cell: float
    plain: float
    draft: float
    limit: int
    least: float


class StepCounts(NamedTuple):
    """What governed steps have done. length: the text's length at the last decision; proposed, accepted: by drafter;
    sizes: steps by drafted rows; silent: steps without a draft by `SILENT`; seconds: of deciding and learning;
    expected: what the last guesses would have brought, relative to what their rows cost."""

    steps: int
    length: int
    proposed: list[int]
    accepted: list[int]
    sizes: list[int]
    silent: list[int]
    seconds: float
    expected: float


class StepGovernor(Protocol):
    """Lets the steps of one text draft by themselves, with the tables of a `DraftGroup`. `sequences`: of the next
    call; seconds, drafted: of all its steps so far, the time of deciding and learning, and the guesses that ran."""

    sequences: int

    @property
    def seconds(self) -> float: ...

    @property
    def drafted(self) -> int: ...

    def renew(self, costs: StepCosts, sequences: int, n_prompt: int, left: int, capacity: int) -> None:
        """Set the terms of the next steps. left: the most tokens that may come; capacity: of the cache."""
        ...

    def end_among(self, after: int, ties: int) -> None:
        """Set the texts that end after this one and those that end with it, if no further texts come (ties > 0)."""
        ...

    def drain(self) -> StepCounts:
        """What the steps since the last `drain` have done."""
        ...


# The reasons of `StepCounts.silent`: nothing was to be asked, the balance, no guess, guesses that do not pay, no room.
SILENT = ("waiting", "bank", "no_guess", "refused", "no_room")


class DecodingStep(Protocol):
    """The steps of one generation. Each draw takes its number from the generation's own generator when it is made, so
    that its state is never out of date."""

    @property
    def settings(self) -> StepSettings: ...

    def start(self, token: int) -> None:
        """The next runs are of one row each, the first of them of this token, the only one that is not cached."""
        ...

    def govern(self, governor: StepGovernor, ids: Sequence[int]) -> None:
        """Let the runs since `start` draft as the governor decides. ids: the text."""
        ...

    def draft(self, rows: Rows, top: int) -> CallResult:
        """The next run is of these rows: the last token and a draft below it. The result, filled by the run, has the
        best `top` tokens of each row."""
        ...

    def decide(self, token: int) -> None:
        """Continue with a token for the row that was not decided."""
        ...

    @property
    def undecided(self) -> bool:
        """Whether the last run stopped at a row whose logits do not decide the token; the sampler has them."""
        ...

    @property
    def accepted(self) -> int:
        """How many rows `followed` returns."""
        ...

    def by(self, row: int) -> int:
        """The drafters that proposed a row of the last run of a governed step, by bit."""
        ...

    def followed(self) -> tuple[list[int], list[int]]:
        """The accepted rows of the last run, 0 first, and the token picked after each; -1 after a token that ends the
        text. Of an undecided row no token."""
        ...

    @property
    def number(self) -> float:
        """The last random number."""
        ...

    @property
    def numbers(self) -> int:
        """How many random numbers have been drawn."""
        ...


class Stepped(NamedTuple):
    """tokens: the first one that each step picked; -1: undecided; -2: there was no memory for it. seconds: of the
    forward; rows: in it, drafted ones among them; cells: the cached tokens that they read (`text_cells` of
    edgedec.decoding.allocation). results: of the other calls. spent: the seconds that governed steps took to decide and
    learn; drafts: how many of them had a draft; both without undecided ones."""

    tokens: list[int]
    seconds: float
    rows: int
    cells: int
    results: list[CallResult]
    spent: float = 0.0
    drafts: int = 0

    def several(self, token: int) -> bool:
        """Whether a step with this first token may have picked more than one."""
        return self.drafts > 0 or token < 0


class StepParts(NamedTuple):
    """make: creates the step of a generation; run: one forward of several steps and of other calls, on a runtime with
    these parts. If the run fails nothing has changed, and its numbers are used by the next run."""

    make: Callable[[StepSettings], DecodingStep]
    run: Callable[[Any, Sequence[Any], Sequence[Call]], Stepped]
