"""What a search found, for Python programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class FoundText:
    """A text of a search. value: its score, in the search's own measure; finish: why it ended."""

    text: str
    tokens: tuple[int, ...]
    value: float
    finish: str


@dataclass(frozen=True)
class SearchResult(FoundText):
    """The text that a search gave. texts: all that it ended with, the best first; report: what it took."""

    texts: tuple[FoundText, ...] = ()
    report: Mapping[str, object] = ()  # type: ignore[assignment]
