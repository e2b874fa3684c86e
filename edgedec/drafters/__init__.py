"""Drafters: each file proposes the tokens ahead in its own way; file name = registry key.

Whatever a drafter proposes, the output stays what it would have been (`edgedec.decoding.verify`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, TypeVar

from edgedec.bundle import Bundle
from edgedec.decoding.draft import (
    BaseDrafter,
    Draft,
    Drafter,
    Effort,
    PromptRows,
    Proposal,
    Sampled,
    State,
)
from edgedec.errors import UsageError
from edgedec.runtime import Runtime
from edgedec.text.tokenizer import Tokenizer
from edgedec.words import typed_options

__all__ = [
    "BaseDrafter",
    "Draft",
    "Drafter",
    "DrafterContext",
    "Effort",
    "PromptRows",
    "Proposal",
    "Sampled",
    "State",
    "Tables",
    "drafter_module",
    "drafter_names",
    "make_drafter",
]

# What several sessions learned of their model and share. Not for two threads at once.
Tables = dict[Hashable, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class DrafterContext:
    """What a drafter may use: the target's runtime, its bundle, its tokenizer (a function: some bundles have none), and
    what other sessions learned of this model (None: each learns for itself)."""

    runtime: Runtime
    bundle: Bundle
    tokenizer: Callable[[], Tokenizer]
    tables: Tables | None = None

    def table(self, name: Hashable, make: Callable[[], T]) -> T:
        """The table of this name: the shared one, or a new one."""
        if self.tables is None:
            return make()
        if name not in self.tables:
            self.tables[name] = make()
        found: T = self.tables[name]
        return found


@cache
def drafter_names() -> tuple[str, ...]:
    """The drafters that ship, by file name. Read once: a session is made for every request of a server."""
    return tuple(sorted(m.name for m in iter_modules(__path__) if not (m.ispkg or m.name.startswith("_"))))


def drafter_module(name: str) -> ModuleType:
    """The file of a drafter. It may declare AUTO, its rank among the drafters of `auto`, and what of the
    bundle it needs: HEAD, the interface of a draft head, or DRAFT, a kind of draft; `fits(host)`: may `auto` take
    it?"""
    if name not in drafter_names():
        raise UsageError(f"no drafter {name!r}; there are: {', '.join(drafter_names())}")
    return import_module(f"edgedec.drafters.{name}")


def make_drafter(name: str, host: DrafterContext, options: Mapping[str, str] | None = None) -> Drafter:
    """The drafter `drafters/<name>.py`; options are arguments of its `make`, as text."""
    make = drafter_module(name).make
    drafter: Drafter = make(host, **typed_options(f"drafter {name}", make, options or {}))
    return drafter
