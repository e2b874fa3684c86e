"""What fusions of one companion have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from edgedec.decoding.context import Context
from edgedec.decoding.gathering import Gathering, GatheringStep
from edgedec.decoding.logits import Early
from edgedec.fusion._companion import Companion
from edgedec.sampling import Logits

Logprobs = NDArray[np.float64]


class WithCompanion:
    """A processor that has the logits of one companion. `idle`: it changes nothing, so the companion does not run."""

    early: tuple[int, ...] = ()
    idle = False

    def __init__(self, companion: Companion) -> None:
        self.companion = companion

    def gather(self, step: GatheringStep) -> Gathering:
        if not self.idle:
            yield from self.companion.gather(step)

    def room(self, context: Context) -> int:
        return context.cache.capacity if self.idle else self.companion.room(context)

    def held(self, tokens: int) -> int:
        return 0 if self.idle else self.companion.held(tokens)

    def accept(self, token: int) -> None:
        self.companion.accept(token)

    def reset(self) -> None:
        self.companion.reset()

    def fork(self) -> Self:
        twin = type(self).__new__(type(self))
        twin.__dict__ |= self.__dict__
        twin.companion = self.companion.fork()
        return twin


class OfCandidates(WithCompanion):
    """A processor that chooses among a few candidates by scores, which it finds while it gathers; drafts are not
    used."""

    def __init__(self, companion: Companion) -> None:
        super().__init__(companion)
        self._chosen: tuple[list[int], Logprobs] = [], np.zeros(0)

    def choose(self, tokens: list[int], scores: Logprobs) -> None:
        """The scores of the next token; all others are forbidden."""
        self._chosen = tokens, scores

    def process(self, logits: Logits, path: Sequence[int], early: Early) -> Logits:
        if self.idle:
            return logits
        assert not path
        tokens, scores = self._chosen
        found = np.full(len(logits), -np.inf, np.float32)
        found[tokens] = scores
        return found

    def room(self, context: Context) -> int:
        return super().room(context) if self.idle else 0


def likeliest(logits: Logits, n: int) -> list[int]:
    """The tokens of the n largest logits, the largest first; of equals the lowest id first."""
    found: list[int] = np.argsort(-logits, kind="stable")[:n].tolist()
    return [token for token in found if logits[token] > -np.inf]


def log_softmax(logits: Logits, temperature: float = 1.0) -> Logprobs:
    """Log-probabilities at a temperature, float64. logits [vocab]."""
    x = logits.astype(np.float64) / temperature
    x -= x.max()
    x -= np.log(np.exp(x).sum())
    return x


def mixed(own: Logprobs, other: Logprobs, a: float, b: float) -> Logits:
    """a own + b other; a token that either of them forbids keeps what it has in `own`."""
    with np.errstate(invalid="ignore"):
        found = np.where(np.isfinite(own) & np.isfinite(other), a * own + b * other, own)
    return found.astype(np.float32)


def after(path: Sequence[int], token: int) -> tuple[int, ...] | None:
    """What is left of a path once its first token is accepted; None if it begins with another one.

    >>> after([3, 4], 3), after([3, 4], 4), after([], 3)
    ((4,), None, None)
    """
    return tuple(path[1:]) if path and path[0] == token else None
