"""First finish: n texts are sampled in lockstep, and the first that ends by itself is given; lossy.

Agarwal et al. (arXiv:2505.18149), from the text of the paper; k and the vote from its follow-up (arXiv:2512.02008,
text): a text counts once it ends, the k-th that ends stops all others at once, and the answer that most of these k give
wins, the earlier of equals. Ties of length go by number. Texts that are cut at the limit never win, unless all are.
Short texts are the better ones for some models only: measure yours.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Generator, Sequence
from typing import Annotated, Any

from edgedec.errors import UsageError
from edgedec.plugins import Opt
from edgedec.search.branch import Branch
from edgedec.search.facts import SearchFacts
from edgedec.search.host import SearchHost
from edgedec.search.options import WIDEST, N
from edgedec.search.rolling import roll
from edgedec.search.room import Room

FACTS = SearchFacts(paper="arXiv:2505.18149, arXiv:2512.02008", rests="text")
_CUT = ("length", "context", "dead", "")


def _pattern(value: str) -> str | None:
    try:
        re.compile(value)
    except re.error as error:
        return f"a regular expression ({error})"
    return None


def make(
    host: SearchHost,
    n: N = 8,
    k: Annotated[int, Opt("Texts that must end; the answer of most of them wins.", 1, WIDEST)] = 1,
    answer: Annotated[
        str,
        Opt("What of a text is its answer, as a regular expression: its last match; by default all.", must=_pattern),
    ] = "",
) -> FirstFinish:
    if k > n:
        raise UsageError(f"--search first: k={k}: {n} texts are written; must be at most n")
    if n > 1 and host.config.sampling.temperature == 0:
        raise UsageError(f"--search first: n={n} texts at temperature 0 are one text: set a temperature")
    return FirstFinish(n, k, answer)


class FirstFinish:
    def __init__(self, n: int, k: int, answer: str) -> None:
        self.width, self._k, self._answer = n, k, answer

    def run(self, room: Room) -> Generator[Any, Any, Branch]:
        branches = room.spread((yield from room.root()), self.width)
        race = Lockstep(branches, self._k, room.most)
        yield from roll(room, branches, may=race.may, over=race.over, ended=race.note)
        ended = race.first()
        room.keep(ended or branches)
        if not ended:  # all were cut
            return next((branch for branch in branches if branch.finish != "dead"), branches[0])
        return ended[0] if self._k == 1 else self._voted(room, ended)

    def _voted(self, room: Room, ended: Sequence[Branch]) -> Branch:
        """The first of those whose answer is the commonest."""
        answers = [answer_of(room.text(branch), self._answer) for branch in ended]
        votes = Counter(answers)
        return max(zip(ended, answers, strict=True), key=lambda item: votes[item[1]])[0]


def answer_of(text: str, pattern: str) -> str:
    """The last match in a text, its first group if it has any; without a pattern the text."""
    matches = list(re.finditer(pattern, text)) if pattern else []
    return (matches[-1][matches[-1].re.groups and 1] or "") if matches else text.strip()


class Lockstep:
    """Which texts may go on so that they stay in step, whatever is drafted, and when it is over. `draws` of a text: its
    tokens, and the end token that was drawn after them."""

    def __init__(self, branches: Sequence[Branch], k: int, most: int) -> None:
        self._branches, self._k, self._most = branches, k, most
        self._over = set[int]()

    def note(self, i: int) -> None:
        """Text i goes on no more."""
        self._over.add(i)

    def may(self, i: int) -> bool:
        """Only the texts that are furthest behind."""
        return len(self._branches[i].tokens) == self._behind()

    def over(self) -> bool:
        """Whether k have ended, and none that runs can still be among the first k."""
        ended = self.first()
        return len(ended) == self._k and self._behind() >= _draws(ended[-1])

    def first(self) -> list[Branch]:
        """The first k that ended, in order."""
        ended = [branch for branch in self._branches if branch.finish not in _CUT]
        return sorted(ended, key=_draws)[: self._k]

    def _behind(self) -> int:
        running = [len(b.tokens) for i, b in enumerate(self._branches) if i not in self._over]
        return min(running, default=self._most + 1)


def _draws(branch: Branch) -> int:
    return len(branch.tokens) + (branch.finish == "eos")
