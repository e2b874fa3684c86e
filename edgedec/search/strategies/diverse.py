"""Diverse beam search: groups of beams, each kept from the tokens that the groups before it chose; lossy.

Vijayakumar et al. (arXiv:1610.02424) with Hamming diversity: at each step a group's log-probability of a token is
lowered by `penalty` times the texts of earlier groups that took it at this step; all groups share one forward. The rule
rests on third-party code: transformers' group beam search, before it left the library (4.5x, Apache 2.0). groups=1 is
beam search.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from typing import Annotated, Any

from edgedec.errors import UsageError
from edgedec.plugins import Opt
from edgedec.search.beams import BeamRule, Beams
from edgedec.search.branch import Branch
from edgedec.search.extending import NextOfAll, extend_all
from edgedec.search.facts import SearchFacts
from edgedec.search.host import SearchHost
from edgedec.search.options import Early, LengthPenalty, Rank, Width
from edgedec.search.room import Room
from edgedec.search.strategies.beam import chosen

FACTS = SearchFacts(fixed=True, paper="arXiv:1610.02424", rests="third-party code")


def make(
    host: SearchHost,
    width: Width = 4,
    groups: Annotated[int, Opt("Groups that the texts are divided into; 1: beam search.", 1, 64)] = 2,
    penalty: Annotated[float, Opt("Taken for each earlier choice of a token at this step.", 0, 100)] = 0.5,
    length_penalty: LengthPenalty = 1.0,
    early_stopping: Early = "false",
    rank: Rank = 0,
) -> DiverseSearch:
    if width % groups:
        raise UsageError(f"--search diverse: groups={groups}: must divide width, which is {width}")
    if rank >= width:
        raise UsageError(f"--search diverse: rank={rank}: {width} texts are found; must be below width")
    return DiverseSearch(BeamRule(width // groups, length_penalty, early_stopping), groups, penalty, rank)


class DiverseSearch:
    def __init__(self, rule: BeamRule, groups: int, penalty: float, rank: int = 0) -> None:
        self._rule, self._groups, self._penalty, self._rank = rule, groups, penalty, rank
        self.width = rule.width * groups

    def run(self, room: Room) -> Generator[Any, Any, Branch]:
        first = yield from room.root()
        if not room.most:
            return first
        groups = [Beams(room, branch, self._rule) for branch in room.spread(first, self._groups)]
        while running := [group for group in groups if not group.over]:
            texts = [branch for group in running for branch in group.running]
            following = yield from extend_all(room, texts, groups[0].of_each + self.width)
            self._step(running, following)
            room.keep(branch for group in groups for branch in group.running)
        return chosen(room, [branch for group in groups for branch in group.ended], self._rank)

    def _step(self, running: list[Beams], following: NextOfAll) -> None:
        """One token further, group after group; what a group chose counts against the later ones."""
        used, at = Counter[int](), 0
        for group in running:
            own, at = following.part(at, at + len(group.running)), at + len(group.running)
            less = {token: self._penalty * times for token, times in used.items()}
            used.update(group.step(own, less))
