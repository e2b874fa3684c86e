"""Drafters: each file proposes the tokens ahead in its own way; file name = registry key.

Whatever a drafter proposes, the output stays what it would have been (`edgedec.decoding.verify`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

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
from edgedec.plugins import Family, Opt
from edgedec.runtime import Runtime
from edgedec.text.tokenizer import Tokenizer

__all__ = [
    "FAMILY",
    "BaseDrafter",
    "Draft",
    "Drafter",
    "DrafterContext",
    "DrafterFacts",
    "Effort",
    "PromptRows",
    "Proposal",
    "Sampled",
    "State",
    "Tables",
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


def anywhere(host: DrafterContext) -> bool:
    """True: `auto` may take the drafter for any model."""
    return True


@dataclass(frozen=True)
class DrafterFacts:
    """auto: the rank among the drafters of `auto`, cheapest first; None: `auto` never takes it. head, draft: kinds of a
    trained head and of a draft that the bundle needs to have one of. fits: may `auto` take it for this model? guides:
    where it drafts, retrieved drafts are pruned by its probabilities; guided: its drafts are such. table: what it looks
    up, the last tokens or the text, in a table of what came next; "": it has none. lossy: the option that makes another
    text of it. paper: the method."""

    auto: int | None = None
    head: str = ""
    draft: str = ""
    fits: Callable[[DrafterContext], bool] = anywhere
    guides: bool = False
    guided: bool = False
    table: Literal["", "tokens", "text"] = ""
    lossy: str = ""
    paper: str = ""

    @property
    def trained(self) -> bool:
        """Does it need weights of its own in the bundle?"""
        return bool(self.head or self.draft)


def _governed(
    fixed: Annotated[int, Opt("Tokens drafted at each call, whatever they cost; 0: as many as pay.", 0)] = 0,
) -> None:
    """What any drafter of `--spec` takes."""


FAMILY = Family(
    "edgedec.drafters",
    "drafter",
    flag="--spec",
    facts=DrafterFacts,
    words={"auto": "The drafters that cost next to nothing, and one of the bundle's trained heads."},
    common=_governed,
)


def make_drafter(name: str, host: DrafterContext, options: Mapping[str, Any] | None = None) -> Drafter:
    """The drafter of a file; options: arguments of its `make`, as text or JSON."""
    values = FAMILY.typed(name, options or {})
    values.pop("fixed", None)
    drafter: Drafter = FAMILY.file(name).make(host, **values)
    return drafter
