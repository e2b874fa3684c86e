"""Extraction: of all spans of a passage, the likeliest as the whole answer, found exactly; lossy against free decoding.

EXACT-EXTRACT (Castel et al., arXiv:2108.05857), by the authors' code as others quote it: the argmax, over spans
of at most `most` tokens, of

    sum of log p of its tokens + log p of an end          with mean: divided by the tokens and the end

Spans that begin alike share their rows: they are a trie. The likeliest open node is continued first; a sum only falls,
so that nothing below a node at or under the best answer is looked at. The search is exact: the brute force over all
spans is its test.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import Annotated, Any

import numpy as np

from edgedec.errors import UsageError
from edgedec.plugins import Opt
from edgedec.search.branch import Branch
from edgedec.search.extending import NextTokens, extend
from edgedec.search.facts import SearchFacts
from edgedec.search.host import SearchHost
from edgedec.search.room import Room

FACTS = SearchFacts(paper="arXiv:2108.05857", rests="authors' code, as quoted")
Spans = dict[int, "Spans"]


def make(
    host: SearchHost,
    passage: Annotated[str, Opt("What the answer is a span of; by default the prompt.")] = "",
    most: Annotated[int, Opt("Tokens of a span at most.", 1, 512)] = 16,
    mean: Annotated[bool, Opt("Divide by the length: long spans are not the less likely.")] = False,
    together: Annotated[int, Opt("Spans that are continued in one forward.", 1, 64)] = 8,
) -> Extraction:
    return Extraction(passage, most, mean, together)


@dataclass(order=True)
class _Open:
    """A span that may go on: the bound of what it can become, its order, the branch of all but its last token."""

    bound: float
    number: int
    branch: Branch
    nexts: NextTokens
    token: int
    total: float
    below: Spans


class Extraction:
    """rows: those that were computed, the prompt aside."""

    def __init__(self, passage: str, most: int, mean: bool, together: int) -> None:
        self._passage, self._most, self._mean, self._together = passage, most, mean, together
        self.width, self.rows, self._made = 4 * together, 0, 0
        self._open = list[_Open]()
        self._value, self._answer = -inf, None  # type: float, Branch | None

    def run(self, room: Room) -> Generator[Any, Any, Branch]:
        if not room.ends:
            raise UsageError("--search exact-extract: needs an end token: the model has none, or --ignore-eos is given")
        root = yield from room.root()
        most = min(self._most, room.most)
        spans = trie(self._tokens(room), most, room.ends)
        (nexts,) = yield from extend(room, [root], 1, whole=True)
        self._push(root, nexts, 0.0, spans, most)
        while self._open and -self._open[0].bound > self._value:
            several = [heappop(self._open) for _ in range(min(self._together, len(self._open)))]
            several = [one for one in several if -one.bound > self._value]
            yield from self._continue(room, several, most)
        assert self._answer is not None
        return self._answer

    def _tokens(self, room: Room) -> Sequence[int]:
        if not self._passage:
            return room.context.ids[: room.n_prompt]
        return room.host.tokenizer().encode(self._passage, around=False)

    def _continue(self, room: Room, several: Sequence[_Open], most: int) -> Generator[Any, Any, None]:
        """Compute the last token of some spans: how likely they end there, and what may follow."""
        branches = list[Branch]()
        for one in several:
            branch = room.fork(one.branch)
            branch.push(one.nexts.token(one.token, room.config.logprobs), 0.0)
            branch.logp = one.total
            branches.append(branch)
        room.keep([*branches, *(one.branch for one in self._open)])
        self.rows += len(branches)
        room.counts.tokens += len(branches)
        following = yield from extend(room, branches, 1, whole=True)
        ends = sorted(room.ends)
        for one, branch, nexts in zip(several, branches, following, strict=True):
            assert nexts.scores is not None
            total = one.total + float(np.logaddexp.reduce(nexts.scores[ends]))
            value = total / (len(branch.tokens) + 1) if self._mean else total
            if value > self._value:
                # Its next tokens push to forks of it only, so it stays the text that it is.
                self._value, self._answer = value, room.fork(branch)
                self._answer.finish, self._answer.value, self._answer.logp = "eos", value, total
            self._push(branch, nexts, one.total, one.below, most)

    def _push(self, branch: Branch, nexts: NextTokens, total: float, below: Spans, most: int) -> None:
        assert nexts.scores is not None
        for token, further in below.items():
            sum_ = total + float(nexts.scores[token])
            # At best all that follows is certain; a mean then rises with the length, up to the longest span's.
            bound = sum_ / (most + 1) if self._mean else sum_
            if bound > self._value:
                self._made += 1
                heappush(self._open, _Open(-bound, self._made, branch, nexts, token, sum_, further))


def trie(tokens: Sequence[int], most: int, ends: frozenset[int] = frozenset()) -> Spans:
    """All spans of at most so many tokens, by their tokens; none has an end token.

    >>> trie([7, 8, 7], 2)
    {7: {8: {}}, 8: {7: {}}}
    """
    found: Spans = {}
    for start in range(len(tokens)):
        node = found
        for token in tokens[start : start + most]:
            if token in ends:
                break
            node = node.setdefault(int(token), {})
    return found
