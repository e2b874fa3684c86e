"""A text that follows a grammar: llguidance's matcher, moved to whichever node of a draft tree a mask is computed for.

The matcher is an Earley parser over a lazily built lexer (llguidance, after Guidance's token masks). It takes
tokens and gives them back, so a path costs what it does not share with the path before: one step for each node,
in the order in which a tree is verified.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from edgedec.constraints.vocabulary import Vocabulary, library
from edgedec.errors import UsageError

Mask = NDArray[np.bool_]
# An unusual character may cost a lexer more than the library allows for (a step of 14 ms); better slow than failed.
_LIMITS = {"initial_lexer_fuel": 20_000_000, "step_lexer_fuel": 10_000_000}


class GrammarConstraint:
    """A `Constraint`. `what`: what the user called it, for messages.

    The matcher has taken the accepted tokens and `_ahead`, drafted ones; it is not given end tokens, so
    `_over` is set when one was accepted. `_masks`: those computed, by path.
    """

    def __init__(self, what: str, matcher: Any, vocabulary: Vocabulary) -> None:
        self.what, self.vocabulary = what, vocabulary
        self._matcher = matcher
        self._ahead: list[int] = []
        self._over = False
        self._masks: dict[tuple[int, ...], Mask] = {}
        # The matcher writes whole words of 32 tokens; its vocabulary may have an end token of our own.
        self._bits = np.zeros(-(-vocabulary.tokenizer.vocab_size // 32) * 4, np.uint8)
        self._place = self._bits.ctypes.data, self._bits.nbytes

    @classmethod
    def compile(cls, what: str, grammar: str, vocabulary: Vocabulary) -> GrammarConstraint:
        """From llguidance's own notation; UsageError names what it cannot follow."""
        limits = library().LLParserLimits(**_LIMITS)
        matcher = library().LLMatcher(vocabulary.tokenizer, grammar, log_level=0, limits=limits)
        if matcher.is_error():
            raise UsageError(f"{what}: {reason(matcher.get_error())}")
        return cls(what, matcher, vocabulary)

    def mask(self, path: Sequence[int]) -> Mask:
        """bool [vocab]; nothing is allowed after a path that is not allowed itself."""
        key = tuple(path)
        found = self._masks.get(key)
        if found is None:
            found = self._masks[key] = self._computed(key)
        return found

    def accept(self, token: int) -> None:
        ahead, masks = self._ahead, self._masks
        # Mostly that of the accepted tokens alone; those after other tokens are dropped.
        self._masks = {path[1:]: masks[path] for path in masks if path and path[0] == token}
        if ahead and ahead[0] == token:
            del ahead[0]
        elif self._over or (token in self.vocabulary.eos and self._may_end(())):
            self._over = True
        elif self._follow((int(token),)):
            ahead.clear()
        else:
            raise UsageError(f"{self.what}: token {token} is not allowed here: take one that `mask` allows")

    @property
    def done(self) -> bool:
        if self._over:
            return True
        if self._ahead or not self._matcher.is_stopped():
            return False
        self._check()
        return True

    def forced(self) -> Sequence[int]:
        """The forced text as the tokenizer would write it; the model may yet prefer other tokens for it."""
        self._follow(())
        tokens: list[int] = self._matcher.compute_ff_tokens()
        return tokens

    def reset(self) -> None:
        self._matcher.reset()
        self._over = False
        self._ahead.clear()
        self._masks.clear()

    def fork(self) -> Self:
        twin = type(self)(self.what, self._matcher.deep_copy(), self.vocabulary)
        twin._ahead, twin._over, twin._masks = list(self._ahead), self._over, dict(self._masks)
        return twin

    def _follow(self, path: tuple[int, ...]) -> bool:
        """Bring the matcher to the end of `path`, or as far as it is allowed: did it get there?"""
        ahead, matcher, shared = self._ahead, self._matcher, 0
        while shared < len(ahead) and shared < len(path) and ahead[shared] == path[shared]:
            shared += 1
        if shared < len(ahead):
            matcher.rollback(len(ahead) - shared)
            del ahead[shared:]
        if shared < len(path):
            rest = list(path[shared:])
            if max(rest) >= self.vocabulary.known or not self.vocabulary.eos.isdisjoint(rest):
                return False
            ahead += rest[: matcher.try_consume_tokens(rest)]
        return len(ahead) == len(path)

    def _may_end(self, path: tuple[int, ...]) -> bool:
        return self._follow(path) and bool(self._matcher.is_accepting())

    def _computed(self, path: tuple[int, ...]) -> Mask:
        """bool [vocab]: what may follow `path`."""
        known, size, eos = self.vocabulary.known, self.vocabulary.size, self.vocabulary.eos
        if not self._follow(path):
            end = next((i for i, token in enumerate(path) if token in eos), None)
            return np.full(size, end is not None and self._may_end(path[:end]))
        if self._over or (not eos and self._matcher.is_stopped()):
            self._check()
            return np.ones(size, bool)
        self._matcher.unsafe_compute_mask_ptr(*self._place)
        self._check()
        allowed = np.unpackbits(self._bits, count=known, bitorder="little").view(bool)
        return allowed if known == size else np.concatenate((allowed, np.zeros(size - known, bool)))

    def _check(self) -> None:
        """A grammar may outgrow the matcher's limits in the middle of a text."""
        if self._matcher.is_error():
            raise UsageError(f"{self.what}: too complex to follow further: {reason(self._matcher.get_error())}")


def reason(message: str) -> str:
    """The library's words on one line: its first, and those of an inner error, without drawings of the place."""
    lines = [line.strip() for line in message.split("<state>")[0].splitlines() if line.strip()]
    kept = [line for i, line in enumerate(lines) if i == 0 or line.startswith("error:")]
    return " ".join(kept)[:300].rstrip(":") or "no reason given"
