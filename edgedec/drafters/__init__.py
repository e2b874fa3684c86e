"""Drafters: each file guesses the tokens ahead in its own way; file name = registry key.

Whatever a drafter guesses, the output stays what it would have been (`edgedec.verify`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Protocol

from edgedec.errors import UsageError


@dataclass(frozen=True)
class Draft:
    """A tree of guessed tokens below the last known one; parent -1 is that last known token."""

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()

    @classmethod
    def chain(cls, tokens: Sequence[int]) -> Draft:
        return cls(tuple(tokens), tuple(range(-1, len(tokens) - 1)))


class Drafter(Protocol):
    """What the loop asks of a drafter. An empty proposal is plain decoding."""

    def propose(self, ids: Sequence[int], budget: int) -> Draft:
        """At most `budget` tokens that may follow `ids`."""
        ...

    def observe(self, ids: Sequence[int], accepted: int) -> None:
        """`ids` as they are now; `accepted` of the last proposal's tokens came true."""
        ...

    def reset(self) -> None:
        """Another text begins."""
        ...


def drafter_names() -> list[str]:
    return sorted(m.name for m in iter_modules(__path__) if not m.name.startswith("_"))


def make_drafter(name: str) -> Drafter:
    """The drafter `drafters/<name>.py`."""
    if name not in drafter_names():
        raise UsageError(f"no drafter {name!r}; there are: {', '.join(drafter_names())}")
    drafter: Drafter = import_module(f"edgedec.drafters.{name}").make()
    return drafter
