"""Constraints: which tokens may come next, at every node of a draft tree. `edgedec.constraints` makes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray


class ConstraintSource(NamedTuple):
    """What a constraint was compiled from: its kind ("json schema", "regex", "grammar", "choices") and text, and the
    whitespace between JSON's tokens ("none", "space" or "any")."""

    kind: str
    text: str
    whitespace: str = "any"


class Constraint(Protocol):
    """A set of allowed texts, followed token by token. It belongs to one generation at a time.

    Seven more members are optional. `source`: what it was compiled from. `limit(tokens)`: notes, when a generation
    begins, how many tokens it may add; None: any number. `ready()`: false while the mask after the accepted tokens is
    still being computed; other sequences of the batch continue meanwhile. `begun(path)`: starts computing the mask
    after drafted tokens, and returns whether it is available. `slow`: true after a mask that took long; nothing is
    drafted then. `allowed(tokens, parents, seconds)`: for each node of a draft tree whether it is allowed, or None if
    that takes longer than the `seconds` that the rows would cost; a node that it marks as not allowed must be
    forbidden. `validate(tokens, path)`: whether each of a few tokens may follow `path`, where that costs less than the
    mask of all."""

    def mask(self, path: Sequence[int]) -> NDArray[np.bool_]:
        """bool [vocab]: what may follow the accepted tokens and then `path` (drafted, not accepted).

        An end token is allowed where the text may end, no other token where it must. After the end token everything is
        allowed: those tokens are discarded.
        """
        ...

    def accept(self, token: int) -> None:
        """Advance by `token`, which was generated."""
        ...

    @property
    def done(self) -> bool:
        """Whether the text is complete, so that only an end token may follow the accepted tokens."""
        ...

    def forced(self) -> Sequence[int]:
        """Tokens that very likely come next because their text is the only one allowed; empty if there is a choice."""
        ...

    def reset(self) -> None:
        """Return to the state before the first token."""
        ...

    def fork(self) -> Self:
        """An independent copy in the same state."""
        ...


def limit_of(constraint: Constraint, tokens: int | None) -> None:
    """Call the constraint's `limit`, if it has one."""
    limit: Callable[[int | None], None] | None = getattr(constraint, "limit", None)
    if limit is not None:
        limit(tokens)


def validated(constraint: Constraint, tokens: Sequence[int], path: Sequence[int] = ()) -> list[bool]:
    """Whether each of these tokens may follow `path`: by the constraint's `validate`, or by its mask."""
    checks: Callable[[Sequence[int], Sequence[int]], list[bool]] | None = getattr(constraint, "validate", None)
    if checks is not None:
        return checks(tokens, path)
    mask = constraint.mask(path)
    return [bool(mask[token]) for token in tokens]


def always() -> bool:
    return True


def never() -> bool:
    return False


class ConstraintHooks(NamedTuple):
    """The functions of a generation's constraint, besides its masks, that the loop and the drafters call; the defaults
    are for a text without a constraint.

    forced(): the tokens that must come next; ready(): whether the mask after the accepted tokens is computed; slow():
    whether drafts are left out because masks take long. allowed(tokens, parents, seconds): for each node of a draft
    tree, whether it is allowed, or None if that takes longer than the `seconds` that the rows cost; None if the
    constraint has no such method. parks: whether the runner of the loop accepts `Waiting` and runs other texts
    meanwhile.
    """

    forced: Callable[[], Sequence[int]] = tuple
    ready: Callable[[], bool] = always
    slow: Callable[[], bool] = never
    allowed: Callable[[Sequence[int], Sequence[int], float], Sequence[bool] | None] | None = None
    parks: bool = False

    @classmethod
    def of(cls, constraint: Constraint | None, parks: bool) -> ConstraintHooks:
        """The hooks of a constraint, with those optional methods that it defines."""
        if constraint is None:
            return cls(parks=parks)
        return cls(
            constraint.forced,
            getattr(constraint, "ready", always),
            partial(getattr, constraint, "slow", False),
            getattr(constraint, "allowed", None),
            parks,
        )


NO_HOOKS = ConstraintHooks()
