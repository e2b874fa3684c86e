"""What the methods of diffusion decoding get when they are made, and what they declare of themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NoReturn

from edgedec.bundle.manifest import DiffusionFacts
from edgedec.errors import UsageError
from edgedec.runtime import Capabilities
from edgedec.text.token_bytes import TokenBytes

Context = Literal["causal", "block", "full"]


def _no_tokenizer(*_: object) -> NoReturn:
    raise UsageError("--diffusion fits: a form or a grammar of text needs a tokenizer, which this bundle has not")


@dataclass(frozen=True)
class DiffusionHost:
    """facts: the bundle's; capabilities: of its runtime. newlines(): the tokens whose text has a line break, empty
    without a tokenizer; ends: those that end a text; token(text): the special token of this text, None if there is
    none. encode(text): its tokens; token_bytes(): the bytes of each token; vocab: how many there are."""

    facts: DiffusionFacts
    capabilities: Capabilities
    newlines: Callable[[], frozenset[int]] = frozenset
    ends: frozenset[int] = frozenset()
    token: Callable[[str], int | None] = lambda text: None
    encode: Callable[[str], list[int]] = _no_tokenizer
    token_bytes: Callable[[], TokenBytes] = _no_tokenizer
    vocab: int = 1 << 31


@dataclass(frozen=True)
class MethodFacts:
    """contexts: the models that a method is for. exact: whether the text is that of the same schedule without a cache
    (keeping), or of one token a pass (schedules). entropy: it needs the entropy of each position, for which all logits
    are copied. stale: the cache may hold keys of the block that are out of date. edits: it replaces filled tokens;
    final: it needs them to stay. needs: a choice that it goes with, as SEAM=METHOD. paper: the method."""

    contexts: tuple[Context, ...] = ("causal", "block", "full")
    exact: bool = False
    entropy: bool = False
    stale: bool = False
    edits: bool = False
    final: bool = False
    needs: str = ""
    paper: str = ""
