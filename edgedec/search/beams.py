"""The beams of one search, or of one group of it: which continuations run on, which have ended, and when it is over.

Rests on transformers' code (`generation/utils.py`, 5.24, Apache 2.0), whose choices these are, ties apart:

- of all continuations the `max(2, 1 + end tokens) * width` best are looked at; the `width` best that do not end run on;
- one that ends (end token, stop string, most tokens) counts only if it is among the `width` best; its score is the sum
  of log-probabilities / length ** penalty, the end token counted in both;
- `early`: true: over once `width` have ended. never, false: over once the best running sum / length ** penalty is not
  above the worst of `width` ended; the length is, under never and a positive penalty, the longest possible one.

Worked example, width 2, "e" ends, penalty 1, after "a" (-1.0) and "b" (-1.2):

    candidates   a e -1.3   b a -1.5   a a -1.9   b e -2.0      rank 0 ends: "a e" -1.3 / 2 = -0.65
    run on       b a -1.5   a a -1.9                             rank 3 ends too low and is forgotten
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgedec.search.branch import Branch
from edgedec.search.extending import NextOfAll
from edgedec.search.room import Room

NO_PENALTY: Mapping[int, float] = {}


@dataclass(frozen=True)
class BeamRule:
    """width: texts that run; penalty: of lengths; early: "false", "true" or "never"."""

    width: int
    penalty: float
    early: str


class _Candidate(NamedTuple):
    score: float
    parent: int
    token: int
    end: str = ""


@lru_cache(maxsize=64)
def _parents(n: int, k: int) -> NDArray[np.int64]:
    """Whose k continuations each of those of n texts belongs to."""
    return np.arange(n).repeat(k)


class Beams:
    """running: the texts that go on, the best first, with their sums in `logp`; ended: the best of those that have, the
    best first, with their scores in `value`; they hold no cache."""

    def __init__(self, room: Room, first: Branch, rule: BeamRule) -> None:
        self._room, self._rule = room, rule
        self.running, self.ended, self.over = [first], list[Branch](), False

    @property
    def looked_at(self) -> int:
        """How many continuations a step looks at."""
        return max(2, 1 + len(self._room.ends)) * self._rule.width

    @property
    def of_each(self) -> int:
        """How many continuations of one text a step needs: none is taken after `width` of them that do not end, and
        without stop strings only end tokens end one."""
        few = self._rule.width + len(self._room.ends)
        return self.looked_at if self._room.config.stop else min(self.looked_at, few)

    def step(self, following: NextOfAll, less: Mapping[int, float] = NO_PENALTY) -> list[int]:
        """Go on by one token. following: the next tokens of each running text, `of_each` of them and as many more as
        `less` has; less: taken from the log-probabilities of some. Returns the tokens of the texts that run on."""
        width, most = self._rule.width, self._room.most
        chosen, ended = list[_Candidate](), list[_Candidate]()
        limit = self._room.limit if len(self.running[0].tokens) + 1 >= most else ""
        for rank, one in enumerate(self._candidates(following, less)):
            if one.score == -inf:  # a constraint allows no more
                break
            if not (end := self._end_of(one.parent, one.token) or limit):
                chosen.append(one)
                if len(chosen) == width:
                    break
            elif rank < width:
                ended.append(one._replace(end=end))
        full = len(self.ended) == width
        if ended and not (full and self._rule.early == "true"):
            self._end(ended, following)
        self._run_on(chosen, following)
        self._room.counts.tokens += len(chosen)
        self._judge()
        return [one.token for one in chosen]

    def _candidates(self, following: NextOfAll, less: Mapping[int, float]) -> Iterator[_Candidate]:
        """The `looked_at` best continuations, the best first."""
        k = following.ids.shape[1]
        sums = np.array([branch.logp for branch in self.running])
        tokens, scores = following.ids.ravel(), (following.logps + sums[:, None]).ravel()
        for token, amount in less.items():
            scores[tokens == token] -= amount
        parents = _parents(len(sums), k)
        order = np.lexsort((tokens, parents, -scores))[: self.looked_at]
        return map(_Candidate, scores[order].tolist(), parents[order].tolist(), tokens[order].tolist())

    def _end_of(self, parent: int, token: int) -> str:
        """Why a token ends its text, however long that is; "" if it does not."""
        if token in self._room.ends:
            return "eos"
        stream = self.running[parent].stream
        return "stop" if stream is not None and stream.fork().push(token).stopped else ""

    def _end(self, candidates: Sequence[_Candidate], following: NextOfAll) -> None:
        for one in candidates:
            parent = self.running[one.parent]
            tokens = list(parent.tokens)
            if one.end != "eos":
                tokens.append(following.token(one.parent, one.token, self._room.config.logprobs))
            value = one.score / (len(parent.tokens) + 1) ** self._rule.penalty
            # Without its cache: the pages of a text that has ended are free.
            self.ended.append(
                replace(parent, context=self._room.context, tokens=tokens, logp=one.score, value=value, finish=one.end)
            )
        self.ended = sorted(self.ended, key=lambda branch: -branch.value)[: self._rule.width]

    def _run_on(self, chosen: Sequence[_Candidate], following: NextOfAll) -> None:
        """The chosen continuations; the last child of a text takes its cache, the others fork it."""
        last = {one.parent: at for at, one in enumerate(chosen)}
        made = [
            self.running[one.parent] if last[one.parent] == at else self._room.fork(self.running[one.parent], False)
            for at, one in enumerate(chosen)
        ]
        for branch, one in zip(made, chosen, strict=True):
            branch.push(following.token(one.parent, one.token, self._room.config.logprobs), 0.0)
            branch.logp = one.score
        self.running = made

    def _judge(self) -> None:
        """Note whether nothing better can come."""
        complete = [branch for branch in self.running if branch.finish]
        if complete:  # a constraint without an end token: the text is complete as it is
            for branch in complete:
                branch.value = branch.logp / len(branch.tokens) ** self._rule.penalty
            self.ended = sorted([*self.ended, *complete], key=lambda b: -b.value)[: self._rule.width]
            self.running = [branch for branch in self.running if not branch.finish]
        if not self.running:
            self.over = True
        elif len(self.ended) == self._rule.width:
            self.over = self._rule.early == "true" or self._best_possible() <= self.ended[-1].value

    def _best_possible(self) -> float:
        best = max((branch.logp for branch in self.running), default=-inf)
        longest = self._rule.early == "never" and self._rule.penalty > 0
        length = self._room.most if longest else len(self.running[0].tokens)
        return float(best / length**self._rule.penalty)
