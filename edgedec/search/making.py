"""A search by its words, as `beam:width=8`."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Protocol

from edgedec.errors import UsageError
from edgedec.plugins import Family, PluginChoice, Words
from edgedec.search.branch import Branch
from edgedec.search.facts import SearchFacts
from edgedec.search.host import SearchHost
from edgedec.search.room import Room

FLAG = "--search"
FAMILY = Family("edgedec.search.strategies", "search", where=FLAG, facts=SearchFacts)


class Strategy(Protocol):
    """A strategy. width: the most branches that it holds at a time."""

    @property
    def width(self) -> int: ...

    def run(self, room: Room) -> Generator[Any, Any, Branch]:
        """Yields the calls that it needs, and the tokens that are committed; returns the branch whose text it is."""
        ...


def parse_search(words: Words) -> PluginChoice:
    """The search that words name; UsageError for none, several, or options that it does not have."""
    found = FAMILY.parse(words)
    if len(found) != 1:
        raise UsageError(f"{FLAG} {words}: names {len(found)} searches; give one, as in beam:width=8")
    return found[0]


def check_search(words: Words) -> None:
    """UsageError for words that name no search."""
    parse_search(words)


def needs_operator(words: Words) -> str:
    """What of a search runs programs or opens files, which a server does only if its operator says so; "" if
    nothing."""
    name, options = parse_search(words)
    facts = FAMILY.facts(name)
    if facts.code:
        return name
    return next((f"{name}: {key}" for key in facts.operator if options.get(key)), "")


def make_search(host: SearchHost, words: Words) -> Strategy:
    """The search that words name, for one generation."""
    name, options = parse_search(words)
    made: Strategy = FAMILY.file(name).make(host, **options)
    return made


def rows_besides(strategy: Strategy) -> int:
    """The most rows that its texts hold besides prompt and tokens: those of a strategy with `besides`."""
    return int(getattr(strategy, "besides", 0))
