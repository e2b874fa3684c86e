"""A text that follows a grammar: llguidance's matcher, kept at whatever node of a draft tree is asked about.

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


class GrammarConstraint:
    """A `Constraint`. `what`: what the user called it, for messages.

    The matcher has taken the accepted tokens and `_ahead`, drafted ones. `_masks`: those known, by path.
    """

    def __init__(self, what: str, matcher: Any, vocabulary: Vocabulary) -> None:
        self.what, self.vocabulary = what, vocabulary
        self._matcher = matcher
        self._ahead: list[int] = []
        self._masks: dict[tuple[int, ...], Mask] = {}
        # The matcher writes whole words of 32 tokens; its vocabulary may have an end token of our own.
        self._bits = np.zeros(-(-vocabulary.tokenizer.vocab_size // 32) * 4, np.uint8)
        self._place = self._bits.ctypes.data, self._bits.nbytes

    @classmethod
    def compile(cls, what: str, grammar: str, vocabulary: Vocabulary) -> GrammarConstraint:
        """From llguidance's own notation; UsageError names what it cannot follow."""
        matcher = library().LLMatcher(vocabulary.tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise UsageError(f"{what}: {reason(matcher.get_error())}")
        return cls(what, matcher, vocabulary)

    def mask(self, path: Sequence[int]) -> Mask:
        """bool [vocab]; nothing is allowed behind a path that is not allowed itself."""
        key = tuple(path)
        found = self._masks.get(key)
        if found is None:
            found = self._masks[key] = self._computed() if self._follow(key) else np.zeros(self.vocabulary.size, bool)
        return found

    def accept(self, token: int) -> None:
        ahead, masks = self._ahead, self._masks
        # Mostly that of the accepted tokens alone; those behind other tokens are worth nothing now.
        self._masks = {path[1:]: masks[path] for path in masks if path and path[0] == token}
        if ahead and ahead[0] == token:
            del ahead[0]
        elif self._follow((int(token),)):
            ahead.clear()
        elif not (token in self.vocabulary.eos and self.done):
            raise UsageError(f"{self.what}: token {token} is not allowed here: take one that `mask` allows")

    @property
    def done(self) -> bool:
        if self._ahead and self._ahead[0] not in self.vocabulary.eos:
            return False
        self._follow(())
        if self._matcher.is_stopped():
            self._check()
            return True
        return False

    def forced(self) -> Sequence[int]:
        """The forced text as the tokenizer would write it; the model may yet prefer other tokens for it."""
        self._follow(())
        tokens: list[int] = self._matcher.compute_ff_tokens()
        return tokens

    def reset(self) -> None:
        self._matcher.reset()
        self._ahead.clear()
        self._masks.clear()

    def fork(self) -> Self:
        twin = type(self)(self.what, self._matcher.deep_copy(), self.vocabulary)
        twin._ahead, twin._masks = list(self._ahead), dict(self._masks)
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
            # Special tokens have no text, and tokens beyond the vocabulary no meaning.
            if max(rest) >= self.vocabulary.known:
                return False
            ahead += rest[: matcher.try_consume_tokens(rest)]
        return len(ahead) == len(path)

    def _computed(self) -> Mask:
        """bool [vocab]: what may follow where the matcher stands."""
        known, size = self.vocabulary.known, self.vocabulary.size
        if self._matcher.is_stopped() and (not self.vocabulary.eos or self._ended()):
            self._check()
            return np.ones(size, bool)
        self._matcher.unsafe_compute_mask_ptr(*self._place)
        self._check()
        allowed = np.unpackbits(self._bits, count=known, bitorder="little").view(bool)
        return allowed if known == size else np.concatenate((allowed, np.zeros(size - known, bool)))

    def _ended(self) -> bool:
        return str(self._matcher.stop_reason()) == "EndOfSentence"

    def _check(self) -> None:
        """A grammar may outgrow the matcher's limits in the middle of a text."""
        if self._matcher.is_error():
            raise UsageError(f"{self.what}: too complex to follow further: {reason(self._matcher.get_error())}")


def reason(message: str) -> str:
    """The library's words on one line: its first, and those of an inner error, without drawings of the place."""
    lines = [line.strip() for line in message.split("<state>")[0].splitlines() if line.strip()]
    kept = [line for i, line in enumerate(lines) if i == 0 or line.startswith("error:")]
    return " ".join(kept)[:300].rstrip(":") or "no reason given"
