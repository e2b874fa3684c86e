"""Several constraints at once: a token is allowed if all of them allow it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Annotated, Self

import numpy as np
from numpy.typing import NDArray

from edgedec.constraints._facts import FAMILY, ConstraintFacts
from edgedec.decoding.constraint import Constraint, limit_of, validated
from edgedec.errors import UsageError
from edgedec.opened import OpenedModel
from edgedec.plugins import Opt

FACTS = ConstraintFacts(text="of", flag=False, request=False)


def make(
    host: OpenedModel,
    of: Annotated[tuple[str, ...], Opt('Constraints in words, a JSON list: ["regex:pattern=a+", "json_object"].')],
) -> ProductConstraint:
    chosen = [choice for words in of for choice in FAMILY.parse(words)]
    return product([name for name, _ in chosen], [FAMILY.make(name, host, options) for name, options in chosen])


def product(names: Sequence[str], parts: Sequence[Constraint]) -> ProductConstraint:
    """What all of these constraints allow. names: what messages call them."""
    if not parts:
        raise UsageError("product: needs at least one constraint")
    return ProductConstraint(names, parts)


class ProductConstraint:
    """A `Constraint`: the AND of the masks of its parts. Each part may go on when together they cannot: that is a dead
    end, and an error where the text gets there."""

    def __init__(self, names: Sequence[str], parts: Sequence[Constraint], taken: int = 0) -> None:
        self._names, self._parts, self._taken = names, parts, taken

    def limit(self, tokens: int | None) -> None:
        """Note how many tokens may follow."""
        for part in self._parts:
            limit_of(part, tokens)

    def mask(self, path: Sequence[int]) -> NDArray[np.bool_]:
        """bool [vocab]; UsageError at a dead end."""
        found: NDArray[np.bool_] = reduce(np.logical_and, [part.mask(path) for part in self._parts])
        if not found.any() and self._leads_there(path):
            raise self._dead_end(len(path))
        return found

    def validate(self, tokens: Sequence[int], path: Sequence[int] = ()) -> list[bool]:
        """Whether each of these tokens may follow `path`: a part checks those that the parts before it allow."""
        found = [True] * len(tokens)
        for part in self._parts:
            left = [i for i, valid in enumerate(found) if valid]
            if left:
                for i, valid in zip(left, validated(part, [tokens[i] for i in left], path), strict=True):
                    found[i] = valid
        return found

    def accept(self, token: int) -> None:
        for part in self._parts:
            part.accept(token)
        self._taken += 1

    @property
    def done(self) -> bool:
        complete = [part.done for part in self._parts]
        if not any(complete):
            return False
        if not all(complete or _may_end(part) for complete, part in zip(complete, self._parts, strict=True)):
            raise self._dead_end(0)
        return True

    def forced(self) -> Sequence[int]:
        """The longest text that a part forces: it is drafted, and checked by all."""
        return max((part.forced() for part in self._parts), key=len)

    def ready(self) -> bool:
        """Whether all masks are available, or nearly."""
        return all(getattr(part, "ready", lambda: True)() for part in self._parts)

    def begun(self, path: Sequence[int]) -> bool:
        """Whether all masks after drafted tokens are available, or nearly; all are started."""
        begun = [getattr(part, "begun", lambda _: True)(path) for part in self._parts]
        return all(begun)

    @property
    def slow(self) -> bool:
        """Whether a mask has delayed other texts."""
        return any(getattr(part, "slow", False) for part in self._parts)

    def allowed(self, tokens: Sequence[int], parents: Sequence[int], seconds: float) -> list[bool] | None:
        """Whether each node of a draft tree is allowed, as far as the parts know it in time."""
        checks = [part.allowed(tokens, parents, seconds) for part in self._parts if hasattr(part, "allowed")]
        known = [found for found in checks if found is not None]
        return [all(node) for node in zip(*known, strict=True)] if known else None

    def may_end(self) -> bool:
        """Whether the text may end here."""
        return all(map(_may_end, self._parts))

    def reset(self) -> None:
        self._taken = 0
        for part in self._parts:
            part.reset()

    def fork(self) -> Self:
        return type(self)(self._names, [part.fork() for part in self._parts], self._taken)

    def _leads_there(self, path: Sequence[int]) -> bool:
        """Whether all parts allow the path itself."""
        return all(part.mask(path[:i])[token] for i, token in enumerate(path) for part in self._parts)

    def _dead_end(self, further: int) -> UsageError:
        after = self._taken + further
        where = f"after {after:,} token{'s' * (after != 1)}" if after else "as the first token"
        return UsageError(f"{' and '.join(self._names)}: a dead end: nothing is allowed by all of them {where}")


def _may_end(part: Constraint) -> bool:
    """Whether a part's text may end; a constraint that cannot tell may."""
    return bool(getattr(part, "may_end", lambda: True)())
