"""Logits processors: they change the logits before a token is chosen, at every node of a draft tree.

`edgedec.decoding.logits` describes what one does. One object belongs to one generation at a time: a server and a batch
make new ones for every text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from edgedec.decoding.logits import LogitsProcessor
from edgedec.errors import RuntimeUnavailable, UsageError
from edgedec.plugins import Family, Words
from edgedec.processors._facts import ProcessorFacts

if TYPE_CHECKING:
    from edgedec.opened import OpenedModel

__all__ = ["FAMILY", "MOST", "LogitsProcessor", "ProcessorFacts", "check_processors", "make_processors"]

FAMILY = Family("edgedec.processors", "processor", where="processors", facts=ProcessorFacts)
# Of one generation: each costs time at every token.
MOST = 16


def check_processors(words: Words) -> None:
    """UsageError for words that name no processors, or options that they do not have."""
    if not isinstance(words, str | Mapping | list | tuple):
        raise UsageError(f"processors: must be text, an object or a list, not {type(words).__name__}")
    count = len(FAMILY.parse(words))
    if count > MOST:
        raise UsageError(f"processors: {count}; at most {MOST} are allowed")


def make_processors(model: OpenedModel, words: Words) -> tuple[LogitsProcessor, ...]:
    """The processors that words name, in order, for one generation of a model."""
    check_processors(words)
    return tuple(_made(model, name, options) for name, options in FAMILY.parse(words))


def _made(model: OpenedModel, name: str, options: dict[str, object]) -> LogitsProcessor:
    able = model.runtime.capabilities
    if FAMILY.facts(name).layers and not (able.hidden and able.slices):
        raise RuntimeUnavailable(f"processors {name}: the engine {model.runtime.name} gives no logits of inner layers")
    made: LogitsProcessor = FAMILY.make(name, model, options)
    return made
