"""Drafters: what proposes the tokens ahead, for the target to verify.

One file a drafter. Drafts never change the text, or its distribution (`edgedec.decoding.verify`), except those of the
few drafters that are named lossy: they have a `shift`, which changes the target's logits.
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
    "ALWAYS",
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

# `DrafterFacts.lossy` of a drafter that changes every text.
ALWAYS = "always"
# Learned tables that several sessions of a model share. Not for two threads at once.
Tables = dict[Hashable, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class DrafterContext:
    """The resources of a drafter: the target's runtime, its bundle, its tokenizer (a function: some bundles have none),
    and the tables that sessions of this model share (None: each session learns by itself)."""

    runtime: Runtime
    bundle: Bundle
    tokenizer: Callable[[], Tokenizer]
    tables: Tables | None = None

    def table(self, name: Hashable, make: Callable[[], T]) -> T:
        """The table of this name: the shared table, or a new one."""
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
    """auto: the rank among the drafters of `auto`, cheapest first; None: never part of `auto`. head, draft: the kinds
    of trained head and of draft model, one of which the bundle must have. fits: whether `auto` may use it for this
    model. guides: its probabilities prune retrieved drafts; guided: its drafts are retrieved and are pruned. table: the
    key of its table of next tokens, the last tokens or the text; "": it has no table. lossy: the option under which the
    text changes, or `ALWAYS`. paper: the method."""

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
        """Whether it needs weights of its own in the bundle."""
        return bool(self.head or self.draft)


def _governed(
    fixed: Annotated[int, Opt("Tokens drafted at each call, whatever they cost; 0: as many as pay.", 0)] = 0,
) -> None:
    """The options that every drafter of `--spec` accepts."""


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
