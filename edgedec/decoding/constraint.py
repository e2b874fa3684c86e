"""Constraints: which tokens may come next, at every node of a draft tree. `edgedec.constraints` makes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray


class Constraint(Protocol):
    """A set of allowed texts, followed token by token. It belongs to one generation at a time.

    Four more methods may be there: `ready()`, false while what follows the accepted tokens is still being computed,
    lets the other sequences of a batch go on meanwhile; `begun(path)` has what follows drafted tokens computed, and
    says whether it is known; `slow`, true where one took long, keeps drafts from waiting; `allowed(tokens, parents,
    seconds)` says which nodes of a draft tree are worth running, in less than the `seconds` that their rows would cost,
    or None. What it leaves out must be forbidden.
    """

    def mask(self, path: Sequence[int]) -> NDArray[np.bool_]:
        """bool [vocab]: what may follow the accepted tokens and then `path` (drafted, not accepted).

        An end token is allowed where the text may end, no other token where it must. After the end itself
        everything is allowed, as nobody will see it.
        """
        ...

    def accept(self, token: int) -> None:
        """`token` was generated."""
        ...

    @property
    def done(self) -> bool:
        """Is the text complete, so that nothing but its end may follow the accepted tokens?"""
        ...

    def forced(self) -> Sequence[int]:
        """Tokens that very likely come next, as their text must; empty if there is a choice."""
        ...

    def reset(self) -> None:
        """Another text begins."""
        ...

    def fork(self) -> Self:
        """An independent constraint that stands where this one does."""
        ...


def always() -> bool:
    return True


def never() -> bool:
    return False


class ConstraintHooks(NamedTuple):
    """What the loop and the drafters call of a generation's constraint, apart from its masks; the defaults are those of
    a text without a constraint.

    forced(): the tokens that must come next; ready(): is what follows the accepted tokens computed? slow(): are drafts
    to be left out because masks take long? allowed(tokens, parents, seconds): for each node of a draft tree, whether it
    is allowed, or None if that is not known in less than the `seconds` that their rows cost; None where the constraint
    has no such method. parks: does the runner of the loop accept `Waiting`, and go on with other texts meanwhile?
    """

    forced: Callable[[], Sequence[int]] = tuple
    ready: Callable[[], bool] = always
    slow: Callable[[], bool] = never
    allowed: Callable[[Sequence[int], Sequence[int], float], Sequence[bool] | None] | None = None
    parks: bool = False

    @classmethod
    def of(cls, constraint: Constraint | None, parks: bool) -> ConstraintHooks:
        """The hooks of a constraint; of its optional methods those that it has."""
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
