"""A constraint whose state is a value. Subclasses say what a state lets follow; this follows texts and drafts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from copy import copy
from typing import Generic, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgedec.constraints.automata.tokens import TokenTree
from edgedec.errors import UsageError

S = TypeVar("S", bound=Hashable)
Mask = NDArray[np.bool_]
# The masks that are kept, a bit a token: 16 MiB at a vocabulary of 128k.
_KEPT = 1024


class KeptMask(NamedTuple):
    """The mask of a state, a bit a token. goes_on: whether any token but an end is in it."""

    bits: NDArray[np.uint8]
    goes_on: bool


class StateConstraint(ABC, Generic[S]):
    """A `Constraint`: `_states` are those after the accepted tokens and each drafted one that was asked about.

    what: the user's name of it, for messages. A state None is that after a token that was not allowed.
    """

    def __init__(self, what: str, tokens: TokenTree, first: S) -> None:
        self.what, self._tokens, self._first = what, tokens, first
        self._state: S = first
        self._over, self._taken = False, 0
        self._masks = OrderedDict[Hashable, KeptMask]()

    @abstractmethod
    def after(self, state: S, text: bytes) -> S | None:
        """The state after a token's bytes; None if they are not allowed."""

    @abstractmethod
    def may_follow(self, state: S, found: Mask) -> None:
        """Set `found` of all tokens that may follow, the end left out."""

    @abstractmethod
    def complete(self, state: S) -> bool:
        """Whether the text may end."""

    def key(self, state: S) -> Hashable:
        """What the mask depends on."""
        return state

    def mask(self, path: Sequence[int]) -> Mask:
        """bool [vocab]; nothing is allowed after a path that is not allowed itself. UsageError at a dead end."""
        state, over = self._along(path)
        if over:
            return np.ones(self._tokens.size, bool)
        if state is None:
            return np.zeros(self._tokens.size, bool)
        return np.unpackbits(self._kept(state, len(path)).bits, count=self._tokens.size, bitorder="little").view(bool)

    def validate(self, tokens: Sequence[int], path: Sequence[int] = ()) -> list[bool]:
        """Whether each of these tokens may follow `path`, by its own bytes."""
        state, over = self._along(path)
        return [over or (state is not None and self._valid(state, token)) for token in tokens]

    def accept(self, token: int) -> None:
        state, over = self._along((int(token),))
        if state is None and not over:
            raise UsageError(f"{self.what}: token {token} is not allowed here: take one that `mask` allows")
        self._over = over
        if state is not None:
            self._state = state
        self._taken += 1

    @property
    def done(self) -> bool:
        return self._over or (self.complete(self._state) and not self._kept(self._state, 0).goes_on)

    def may_end(self) -> bool:
        """Whether the text may end here."""
        return self._over or self.complete(self._state)

    def forced(self) -> Sequence[int]:
        """None are drafted for it."""
        return ()

    def allowed(self, tokens: Sequence[int], parents: Sequence[int], seconds: float) -> list[bool]:
        """Whether each node of a draft tree, parents first, is allowed."""
        states: list[tuple[S | None, bool]] = []
        for token, parent in zip(tokens, parents, strict=True):
            state, over = states[parent] if parent >= 0 else (self._state, self._over)
            states.append(self._step(state, over, token))
        return [over or state is not None for state, over in states]

    def reset(self) -> None:
        self._state, self._over, self._taken = self._first, False, 0

    def fork(self) -> Self:
        return copy(self)  # the masks are shared

    def _along(self, path: Sequence[int]) -> tuple[S | None, bool]:
        """The state after drafted tokens, and whether one of them ended the text."""
        found: tuple[S | None, bool] = self._state, self._over
        for token in path:
            found = self._step(*found, token)
        return found

    def _step(self, state: S | None, over: bool, token: int) -> tuple[S | None, bool]:
        if over or state is None:
            return state, over
        if token in self._tokens.ends:
            return (state, True) if self.complete(state) else (None, False)
        text = self._tokens.spelt(token)
        return (self.after(state, text) if text else None), False

    def _valid(self, state: S, token: int) -> bool:
        found, over = self._step(state, False, token)
        return over or found is not None

    def _kept(self, state: S, further: int) -> KeptMask:
        """The mask of a state, computed once; UsageError if nothing may follow and the text may not end."""
        key = self.key(state)
        found = self._masks.get(key)
        if found is None:
            mask = np.zeros(self._tokens.size, bool)
            self.may_follow(state, mask)
            goes_on, complete = bool(mask.any()), self.complete(state)
            if complete:
                mask[[end for end in self._tokens.ends if end < len(mask)]] = True
            if not (goes_on or complete):
                raise UsageError(
                    f"{self.what}: a dead end after {self._taken + further:,} tokens: no token continues it"
                )
            if not mask.any():
                mask[:] = True  # a model without an end token: what follows the text is discarded
            found = self._masks[key] = KeptMask(np.packbits(mask, bitorder="little"), goes_on)
            if len(self._masks) > _KEPT:
                self._masks.popitem(last=False)
        return found
