"""Logits processors: they change the logits of a row before a token is chosen, in a fixed order, at each tree node.

    model ─> config.processors ─> bias, penalties ─> repeats ─> constraint ─> min_tokens ─> temperature, cuts, draw

A processor gets the drafted tokens from the last known one to the row; `accept` gets only accepted tokens. A processor
that names `early` blocks also gets the logits that the model's head computes from the state after each of these blocks:
the loop runs extra calls of the head alone. One that has `gather` asks for forwards of its own (`gathering`). One that
has `fuse` joins two distributions after all others, what they make of the model's logits and of its own `other` ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from edgedec.decoding.constraint import Constraint
from edgedec.decoding.context import Context
from edgedec.decoding.gathering import GathersForwards
from edgedec.errors import UsageError
from edgedec.sampling import Logits, Probs, Sampling, adjust
from edgedec.sampling.best import Best, adjust_best
from edgedec.sampling.repeats import repeated

Early = Mapping[int, Logits]


class LogitsProcessor(Protocol):
    """One change of the logits. It belongs to one generation at a time."""

    early: tuple[int, ...]

    def process(self, logits: Logits, path: Sequence[int], early: Early) -> Logits:
        """The logits [vocab] of the token that follows the accepted tokens and then `path` (drafted, not accepted): a
        new array, or the same if nothing changes. early: logits [vocab] by block, of the blocks in `self.early`."""
        ...

    def accept(self, token: int) -> None:
        """Advance by `token`, which was generated."""
        ...

    def reset(self) -> None:
        """Prepare for another text."""
        ...

    def fork(self) -> Self:
        """An independent copy in the same state."""
        ...


@runtime_checkable
class BestProcessor(Protocol):
    """A processor that also works on the k best of a row; with any other processor all logits are computed."""

    def process_best(self, best: Best, path: Sequence[int]) -> Best:
        """The k best with the scores that `process` would give them, and valid bounds for the other tokens."""
        ...


@runtime_checkable
class FusesDistributions(Protocol):
    """A processor that joins two distributions of the next token, both after penalties, constraint and cuts."""

    def other(self, path: Sequence[int]) -> Logits:
        """The logits [vocab] of the second distribution after `path`."""
        ...

    def fuse(self, own: Probs, other: Probs, path: Sequence[int]) -> Probs:
        """The distribution after `path`; those of the places before it were fused first."""
        ...


@runtime_checkable
class ReadsText(Protocol):
    """A processor that depends on the tokens of the text."""

    def attach(self, context: Context) -> None:
        """Read the text of this context from here on."""
        ...


class BaseProcessor:
    """The defaults of most processors: no early logits, no state that depends on the text."""

    early: tuple[int, ...] = ()

    def accept(self, token: int) -> None:
        pass

    def reset(self) -> None:
        pass

    def fork(self) -> Self:
        return self


class Penalties(BaseProcessor):
    """Bias and penalties of a `Sampling`, by the tokens of the text and of the path."""

    def __init__(self, sampling: Sampling, context: Context) -> None:
        self._sampling, self._context = sampling, context

    def process(self, logits: Logits, path: Sequence[int], early: Early) -> Logits:
        return adjust(logits, self._sampling, self._ids(path), self._context.n_prompt)

    def process_best(self, best: Best, path: Sequence[int]) -> Best:
        context = self._context
        return adjust_best(best, self._sampling, self._ids(path), context.n_prompt, context.cache.spec.vocab_size)

    def _ids(self, path: Sequence[int]) -> list[int]:
        return [*self._context.ids, *path] if path else self._context.ids


class Repeats(BaseProcessor):
    """No-repeat n-grams and DRY of a `Sampling`, by the tokens of the text and of the path. breakers: the tokens of its
    sequence breakers."""

    def __init__(self, sampling: Sampling, context: Context, breakers: Sequence[Sequence[int]]) -> None:
        self._sampling, self._context, self._breakers = sampling, context, breakers

    def process(self, logits: Logits, path: Sequence[int], early: Early) -> Logits:
        ids = np.array([*self._context.ids, *path], np.int64)
        return repeated(logits, self._sampling, ids, self._breakers)


class MinTokens(BaseProcessor):
    """No end token before `n` tokens, unless a constraint leaves no other: then the text is complete."""

    def __init__(self, ends: frozenset[int], n: int) -> None:
        self._ends, self._left = np.array(sorted(ends), np.int64), n

    def process(self, logits: Logits, path: Sequence[int], early: Early) -> Logits:
        if len(path) >= self._left:
            return logits
        scores = logits.copy()
        scores[self._ends[self._ends < len(scores)]] = -np.inf
        return logits if scores.max() == -np.inf else scores

    def process_best(self, best: Best, path: Sequence[int]) -> Best:
        if len(path) >= self._left:
            return best
        ended = np.isin(best.ids, self._ends)
        return best.lower(np.where(ended, np.float32(-np.inf), best.scores), len(self._ends))

    def accept(self, token: int) -> None:
        self._left -= 1


class MaskPending(Exception):
    """The mask after drafted tokens is still being computed."""


class ConstraintMask:
    """A `Constraint` as a processor: forbidden tokens get the probability 0. If `context.hooks.parks`, a mask after
    drafted tokens that is not computed yet raises MaskPending."""

    early: tuple[int, ...] = ()

    def __init__(self, constraint: Constraint, context: Context | None = None) -> None:
        self.constraint, self._context = constraint, context
        self._begun = getattr(constraint, "begun", None)

    def process(self, logits: Logits, path: Sequence[int], early: Early) -> Logits:
        return np.where(self._mask(path), logits, np.float32(-np.inf))

    def process_best(self, best: Best, path: Sequence[int]) -> Best:
        allowed = self._mask(path)[best.ids]
        return best.lower(np.where(allowed, best.scores, np.float32(-np.inf)))

    def _mask(self, path: Sequence[int]) -> NDArray[np.bool_]:
        parks = self._context is not None and self._context.hooks.parks
        if path and parks and self._begun is not None and not self._begun(path):
            raise MaskPending
        return self.constraint.mask(path)

    def accept(self, token: int) -> None:
        self.constraint.accept(token)

    def reset(self) -> None:
        self.constraint.reset()

    def fork(self) -> ConstraintMask:
        return ConstraintMask(self.constraint.fork())


class LogitsChain:
    """The processors of one generation, in their order."""

    def __init__(self, processors: Sequence[LogitsProcessor]) -> None:
        self._processors = processors
        self.early = tuple(sorted({block for processor in processors for block in processor.early}))
        # The k best are used only if all processors support them.
        self._best = [processor for processor in processors if isinstance(processor, BestProcessor)]
        self.takes_best = len(self._best) == len(processors)
        self.gathers = tuple(each for each in processors if isinstance(each, GathersForwards))
        fusing = [each for each in processors if isinstance(each, FusesDistributions)]
        if len(fusing) > 1:
            raise UsageError("processors: two that fuse whole distributions; give one of them")
        self.fusing = fusing[0] if fusing else None
        # Processors that also change the logits of the second distribution.
        self._both = [each for each in processors if not each.early and not isinstance(each, GathersForwards)]

    def __len__(self) -> int:
        return len(self._processors)

    def process(self, logits: Logits, path: Sequence[int], early: Early) -> Logits:
        """Apply all processors to the logits of a row [vocab]."""
        for processor in self._processors:
            logits = processor.process(logits, path, early)
        return logits

    def process_other(self, logits: Logits, path: Sequence[int]) -> Logits:
        """Apply those that are about the text, not about the model, to the logits of a second distribution."""
        for processor in self._both:
            logits = processor.process(logits, path, {})
        return logits

    def process_best(self, best: Best, path: Sequence[int]) -> Best:
        """Apply all processors to the k best of a row."""
        for processor in self._best:
            best = processor.process_best(best, path)
        return best

    def accept(self, token: int) -> None:
        """Advance all processors by `token`, which was generated."""
        for processor in self._processors:
            processor.accept(token)
