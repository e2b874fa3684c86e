"""RankedContinuation continuations: of several sampled suffixes those are kept that fit the prompt best; lossy.

RankGen (Krishna et al., arXiv:2205.09726): from each of `beams` texts `n` suffixes of `length` tokens are sampled
(top-p .9), all are scored by the product of the prompt's vector and the whole suffix's, and the best `beams` go on; the
rule rests on the authors' code. beams=1 and the whole text as one suffix is their re-ranking. The vectors come from a
scorer (a command or a function), or from a bundle: the mean of its last hidden states, scaled to length 1, which was
not trained for this (RankGen's encoders were), so measure before trusting it. The prompt is encoded once.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Annotated, Any

from edgedec.plugins import Opt
from edgedec.search.branch import Branch
from edgedec.search.encoding import bundle_scorer
from edgedec.search.facts import SearchFacts
from edgedec.search.host import SearchHost
from edgedec.search.options import Command, Temperature, Timeout, TopP
from edgedec.search.rolling import roll
from edgedec.search.room import Room
from edgedec.search.scoring import Scorer, needed, scored
from edgedec.search.trials import sampled

FACTS = SearchFacts(operator=("command", "bundle"), paper="arXiv:2205.09726", rests="authors' code")


def make(
    host: SearchHost,
    beams: Annotated[int, Opt("Texts that go on.", 1, 64)] = 2,
    n: Annotated[int, Opt("Suffixes that are sampled after each.", 1, 64)] = 10,
    length: Annotated[int, Opt("Tokens of a suffix; 0: the whole text.", 0, 65_536)] = 20,
    temperature: Temperature = 1.0,
    top_p: TopP = 0.9,
    bundle: Annotated[str, Opt("A bundle whose hidden states are the vectors.")] = "",
    command: Command = "",
    timeout: Timeout = 10.0,
) -> RankedContinuation:
    scorer = bundle_scorer(host, bundle) if bundle else needed(host, "rank", command, timeout)
    return RankedContinuation(scorer, beams, n, length, temperature, top_p)


class RankedContinuation:
    def __init__(self, scorer: Scorer, beams: int, n: int, length: int, temperature: float, top_p: float) -> None:
        self._scorer, self._beams, self._n, self._length = scorer, beams, n, length or None
        self._change, self.width = sampled(temperature, top_p), beams * n

    def run(self, room: Room) -> Generator[Any, Any, Branch]:
        texts = [(yield from room.root())]
        while any(not branch.finish for branch in texts):
            tried = list[Branch]()
            for branch in texts:
                tried += [branch] if branch.finish else room.spread(branch, self._n)
            room.keep(tried)
            yield from roll(room, tried, most=self._length, change=self._change)
            alive = [branch for branch in tried if branch.finish != "dead"]
            yield from scored(room, alive, self._scorer)
            texts = sorted(alive, key=lambda branch: -branch.value)[: self._beams]
            room.keep(texts)
        room.ranked = texts
        return texts[0]
