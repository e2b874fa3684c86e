"""Best of n: n texts are sampled side by side, and the likeliest, or the one that a scorer likes most, is given; lossy.

Each text is the decode loop itself, with drafts, constraints and stops; the first is the one that plain decoding gives.
The rule is common practice: likelihood is the log-probability of the text with its end; mean divides it by the length,
the end counted.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Annotated, Any, Literal

from edgedec.errors import UsageError
from edgedec.plugins import Opt
from edgedec.search.branch import Branch
from edgedec.search.facts import SearchFacts
from edgedec.search.host import SearchHost
from edgedec.search.options import Command, N, Rank, Timeout
from edgedec.search.rolling import roll
from edgedec.search.room import Room
from edgedec.search.scoring import Scorer, scored, scorer_of

FACTS = SearchFacts(operator=("command",), paper="common practice", rests="our own choice")


def make(
    host: SearchHost,
    n: N = 8,
    by: Annotated[
        Literal["mean", "likelihood"],
        Opt("Without a scorer: the mean of the log-probabilities of the tokens and the end, or their sum."),
    ] = "mean",
    command: Command = "",
    timeout: Timeout = 10.0,
    rank: Rank = 0,
) -> BestOf:
    if rank >= n:
        raise UsageError(f"--search best: rank={rank}: {n} texts are written; must be below n")
    if n > 1 and host.config.sampling.temperature == 0:
        raise UsageError(f"--search best: n={n} texts at temperature 0 are one text: set a temperature")
    return BestOf(n, scorer_of(host, by, command, timeout), rank)


class BestOf:
    def __init__(self, n: int, scorer: Scorer, rank: int = 0) -> None:
        self.width, self._scorer, self._rank = n, scorer, rank

    def run(self, room: Room) -> Generator[Any, Any, Branch]:
        branches = room.spread((yield from room.root()), self.width)
        yield from roll(room, branches)
        whole = [branch for branch in branches if branch.finish != "dead"]
        yield from scored(room, whole, self._scorer)
        room.ranked = sorted(whole, key=lambda branch: -branch.value)
        return room.ranked[min(self._rank, len(whole) - 1)]
