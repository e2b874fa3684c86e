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


class DecodingStep(Protocol):
    """The steps of one generation. Each draw takes its number from the generation's own generator when it is made, so
    that its state is never out of date."""

    @property
    def settings(self) -> StepSettings: ...

    def start(self, token: int) -> None:
        """The next runs are of one row each, the first of them of this token, the only one that is not cached."""
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
    forward. results: of the other calls."""

    tokens: list[int]
    seconds: float
    results: list[CallResult]


class StepParts(NamedTuple):
    """make: creates the step of a generation; run: one forward of several steps and of other calls, on a runtime with
    these parts. If the run fails nothing has changed, and its numbers are used by the next run."""

    make: Callable[[StepSettings], DecodingStep]
    run: Callable[[Any, Sequence[Any], Sequence[Call]], Stepped]
