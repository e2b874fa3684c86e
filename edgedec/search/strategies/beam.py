"""Beam search: the likeliest text that a beam of `width` texts finds; lossy.

The rule rests on transformers' code: the same tokens as its beam search, with its three modes of early stopping and its
length penalty (`edgedec.search.beams`). Temperature and the cuts have no part in it; bias, penalties, processors and
constraints change the log-probabilities, as transformers' processors do.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from edgedec.errors import UsageError
from edgedec.search.beams import BeamRule, Beams
from edgedec.search.branch import Branch
from edgedec.search.extending import extend_all
from edgedec.search.facts import SearchFacts
from edgedec.search.host import SearchHost
from edgedec.search.options import Early, LengthPenalty, Rank, Width
from edgedec.search.room import Room

FACTS = SearchFacts(fixed=True, paper="transformers' beam search", rests="authors' code")


def make(
    host: SearchHost,
    width: Width = 4,
    length_penalty: LengthPenalty = 1.0,
    early_stopping: Early = "false",
    rank: Rank = 0,
) -> BeamSearch:
    if rank >= width:
        raise UsageError(f"--search beam: rank={rank}: {width} texts are found; must be below width")
    return BeamSearch(BeamRule(width, length_penalty, early_stopping), rank)


class BeamSearch:
    def __init__(self, rule: BeamRule, rank: int = 0) -> None:
        self._rule, self._rank, self.width = rule, rank, rule.width

    def run(self, room: Room) -> Generator[Any, Any, Branch]:
        first = yield from room.root()
        if not room.most:
            return first
        beams = Beams(room, first, self._rule)
        while not beams.over:
            beams.step((yield from extend_all(room, beams.running, beams.of_each)))
            room.keep(beams.running)
        return chosen(room, beams.ended, self._rank)


def chosen(room: Room, ended: list[Branch], rank: int) -> Branch:
    """The text of a rank; the last one where fewer have ended."""
    if not ended:
        raise UsageError("--search: no text was found: nothing that the constraint allows may follow")
    room.ranked = sorted(ended, key=lambda branch: -branch.value)
    return room.ranked[min(rank, len(ended) - 1)]
