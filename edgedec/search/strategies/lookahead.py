"""Look-ahead where the model is unsure: the likeliest tokens are judged by what would follow each; greedy elsewhere;
lossy.

AdaDec (He et al., arXiv:2506.08980). Where the entropy of the next token (nats) is above a threshold, each of the
`top` likeliest tokens is followed greedily for `ahead` more; the one with the largest

    (log p of the token + log p of what follows) / (1 + tokens that follow)

is taken, alone: what followed is thrown away. The rule rests on the authors' code as others quote it. The threshold
belongs to a model: `edgedec.search.calibrating.threshold` fits it to texts as the paper does. An infinite one is greedy
decoding.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Annotated, Any

from edgedec.plugins import Opt
from edgedec.search.branch import Branch
from edgedec.search.extending import NextTokens, add_ends, extend
from edgedec.search.facts import SearchFacts
from edgedec.search.host import SearchHost
from edgedec.search.rolling import roll
from edgedec.search.room import Room, best_of
from edgedec.search.trials import entropy_of, greedy

FACTS = SearchFacts(streams="commit", paper="arXiv:2506.08980", rests="authors' code, as quoted")


def make(
    host: SearchHost,
    threshold: Annotated[float, Opt("Entropy in nats above which it looks ahead; 0.6 to 1.3 is usual.", 0, 1e9)] = 1.0,
    top: Annotated[int, Opt("Tokens that are tried.", 1, 64)] = 3,
    ahead: Annotated[int, Opt("Tokens that follow each.", 0, 256)] = 5,
) -> LookAhead:
    return LookAhead(threshold, top, ahead)


class LookAhead:
    """pauses: how often it looked ahead."""

    def __init__(self, threshold: float, top: int, ahead: int) -> None:
        self._threshold, self._ahead, self.width, self.pauses = threshold, ahead, top + 1, 0

    def run(self, room: Room) -> Generator[Any, Any, Branch]:
        branch = yield from room.root()
        while not branch.finish and len(branch.tokens) < room.most:
            (nexts,) = yield from extend(room, [branch], self.width - 1, whole=True)
            assert nexts.scores is not None
            token = nexts.best
            if entropy_of(nexts.scores) > self._threshold:
                token = yield from self._looked(room, branch, nexts)
            room.counts.tokens += 1
            branch.push(nexts.token(token, room.config.logprobs), float(nexts.scores[token]))
            yield from room.commit(branch)
        return branch

    def _looked(self, room: Room, branch: Branch, nexts: NextTokens) -> Generator[Any, Any, int]:
        """The token of the best look-ahead."""
        self.pauses += 1
        tried = [room.fork(branch) for _ in nexts.ids]
        room.keep([branch, *tried])
        for one, token, logp in zip(tried, nexts.ids, nexts.logps, strict=True):
            one.logp = 0.0
            one.push(nexts.token(token, None), logp)
        going = [one for one in tried if not one.finish]
        yield from roll(room, going, most=self._ahead, change=greedy, spare=True)
        yield from add_ends(room, going)
        n = len(branch.tokens)
        alive = [one for one in tried if one.finish != "dead"] or tried
        best = best_of(alive, lambda one: one.logp / (one.length - n))
        room.keep([branch])
        return nexts.ids[tried.index(best)]
