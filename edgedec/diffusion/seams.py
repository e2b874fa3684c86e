"""The interfaces of the parts of diffusion decoding: each method is one file that implements one of them. None of them
sees the runtime; an object belongs to one generation."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from edgedec.cache import Cache
from edgedec.decoding.config import GenerationConfig
from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.seen import SeenBlock
from edgedec.runtime import Rows


class FillSchedule(Protocol):
    """Chooses which masked positions are filled."""

    def choose(self, seen: SeenBlock, canvas: Canvas) -> Sequence[int]:
        """The positions to fill, at least one (none, if `seen.given`). The sampling settings choose the tokens."""
        ...


class Blocks(Protocol):
    """Chooses where a block ends."""

    def begin(self, canvas: Canvas, start: int) -> int:
        """The end of the block that begins at `start`, before its first pass."""
        ...

    def cut(self, seen: SeenBlock, canvas: Canvas) -> int:
        """The end of the block after a pass, before positions are chosen; `canvas.end` leaves it."""
        ...


@dataclass(frozen=True)
class PassPlan:
    """The rows of a call. commit: those that the cache keeps, ascending; shown: the position that each row from
    `logits_from` on predicts (-1: none). Empty: the call only reads."""

    rows: Rows
    commit: Sequence[int] = ()
    logits_from: int = 0
    shown: tuple[int, ...] = ()


class Keeping(Protocol):
    """Chooses the rows of each call, and which of them the cache keeps."""

    def plan(self, canvas: Canvas, cache: Cache) -> PassPlan:
        """The next call: of a part of the text that is read, or the block's pass."""
        ...


class Verify(Protocol):
    """Chooses which calls fill a block."""

    def passes(self, text: Any) -> Generator[Any, Any, None]:
        """Fill the block that has begun, and deliver its tokens. text: the `DiffusionText`, whose phases it uses."""
        ...


class Bridge(NamedTuple):
    """Tokens that replace those of the positions `begin` to `end` (excluded), which may be more or fewer."""

    begin: int
    end: int
    tokens: tuple[int, ...]


class FitRule(Protocol):
    """Chooses which token may stand where. strict: whether tokens are tested at all; form: the token of each position
    of the text, -1 where any may stand, empty for a text of any form; done: whether the text is complete; edits: the
    most passes after the one that fills a block's last position, in which its tokens may be replaced; -1: they never
    are.

    front: the first position of the canvas that was not delivered yet."""

    @property
    def strict(self) -> bool: ...
    @property
    def form(self) -> tuple[int, ...]: ...
    @property
    def done(self) -> bool: ...
    @property
    def edits(self) -> int: ...

    def begin(self, config: GenerationConfig, ends: frozenset[int]) -> GenerationConfig:
        """Begin a text that ends with `ends`; the settings that the sampling of tokens still has to keep."""
        ...

    def candidates(self, canvas: Canvas, front: int, position: int, size: int) -> NDArray[np.bool_]:
        """bool [size]: the tokens worth testing at a masked position; never the mask."""
        ...

    def fits(self, canvas: Canvas, front: int, position: int, token: int) -> bool:
        """Whether one of the candidates that were found last may stand there."""
        ...

    def replaced(self, canvas: Canvas, seen: SeenBlock) -> list[int]:
        """The positions whose tokens are replaced by their best ones. seen: of filled positions that may be edited."""
        ...

    def bridge(self, canvas: Canvas, front: int) -> Bridge:
        """What fills the first gap, where no token does."""
        ...

    def accept(self, token: int) -> None:
        """Note that a token was delivered."""
        ...


class EndRule(Protocol):
    """Chooses how end tokens are treated."""

    def factor(self, canvas: Canvas) -> float:
        """The factor of the probability of end tokens, with which schedules rank positions."""
        ...

    def cuts(self, canvas: Canvas, position: int) -> bool:
        """Whether the text is cut after an end token that was filled at a position, though earlier ones are masked."""
        ...
