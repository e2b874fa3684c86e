"""Models that think before they answer: `<think>…</think>` is separated from the answer, and constraints begin after
it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from edgedec.decoding.constraint import limit_of, validated
from edgedec.server.tools import opening
from edgedec.text.marks import THOUGHT

if TYPE_CHECKING:
    from edgedec.constraints import Constraint

OPEN, CLOSE = THOUGHT


def begins_thinking(prompt: str) -> bool:
    """Whether the template's prompt ends inside a thought, so that the text begins with the rest of it."""
    return prompt.rstrip().endswith(OPEN)


class ThoughtSplitter:
    """Divides a text into thoughts and the answer, as it comes. `inside`: the text begins with a thought.

    >>> split = ThoughtSplitter(inside=False)
    >>> split.push("<think>\\nHm"), split.push(". </th"), split.push("ink>\\n\\nYes"), split.end()
    (('Hm', ''), ('. ', ''), ('', 'Yes'), ('', ''))
    """

    def __init__(self, inside: bool) -> None:
        self._held, self._state, self._trims = OPEN if inside else "", "start", False

    def push(self, text: str) -> tuple[str, str]:
        """The text of (thought, answer) that is final."""
        self._held += text
        if self._state == "start":
            self._start()
        thought = self._thought() if self._state == "thought" else ""
        return thought, self._answer() if self._state == "answer" else ""

    def end(self) -> tuple[str, str]:
        """The rest."""
        rest, self._held = self._held, ""
        return (rest, "") if self._state == "thought" else ("", rest)

    def _start(self) -> None:
        text = self._held.lstrip()
        if text.startswith(OPEN):
            self._state, self._held, self._trims = "thought", text[len(OPEN) :], True
        elif not OPEN.startswith(text):
            self._state = "answer"

    def _thought(self) -> str:
        self._trim()
        cut = opening(self._held, CLOSE)
        thought, self._held = self._held[:cut], self._held[cut:]
        if self._held.startswith(CLOSE):
            self._state, self._held, self._trims = "answer", self._held[len(CLOSE) :], True
        return thought

    def _answer(self) -> str:
        self._trim()
        answer, self._held = self._held, ""
        return answer

    def _trim(self) -> None:
        """White space at the beginning of a thought or of the answer is the template's."""
        if self._trims:
            self._held = self._held.lstrip()
            self._trims = not self._held


class AfterThought:
    """A `Constraint` of what follows the token `close`; before it everything is allowed. size: of the vocabulary."""

    def __init__(self, inner: Constraint, close: int, size: int, over: bool = False) -> None:
        self._inner, self._close, self._size, self._over = inner, close, size, over
        self._left: int | None = None

    def limit(self, tokens: int | None) -> None:
        """Note how many tokens may follow, thoughts included."""
        self._left = tokens
        limit_of(self._inner, tokens)

    def mask(self, path: Sequence[int]) -> NDArray[np.bool_]:
        """bool [vocab]: the allowed next tokens."""
        if self._over:
            return self._inner.mask(path)
        if self._close in path:
            after = list(path).index(self._close) + 1
            limit_of(self._inner, None if self._left is None else self._left - after)
            return self._inner.mask(path[after:])
        return np.ones(self._size, bool)

    def validate(self, tokens: Sequence[int], path: Sequence[int] = ()) -> list[bool]:
        """Whether each of these tokens may follow `path`."""
        if self._over:
            return validated(self._inner, tokens, path)
        if self._close in path:
            found = self.mask(path)
            return [bool(found[token]) for token in tokens]
        return [True] * len(tokens)

    def accept(self, token: int) -> None:
        if self._over:
            self._inner.accept(token)
        elif self._left is not None:
            self.limit(self._left - 1)
        self._over = self._over or token == self._close

    @property
    def done(self) -> bool:
        return self._over and self._inner.done

    def forced(self) -> Sequence[int]:
        """Tokens that very likely come next."""
        return self._inner.forced() if self._over else ()

    def ready(self) -> bool:
        """Whether the next mask is available, or nearly."""
        ready: Callable[[], bool] | None = getattr(self._inner, "ready", None)
        return not self._over or ready is None or ready()

    @property
    def slow(self) -> bool:
        """Whether a mask has delayed other texts."""
        return bool(getattr(self._inner, "slow", False))

    def reset(self) -> None:
        self._over = False
        self._inner.reset()

    def fork(self) -> Self:
        twin = type(self)(self._inner.fork(), self._close, self._size, self._over)
        twin._left = self._left
        return twin
