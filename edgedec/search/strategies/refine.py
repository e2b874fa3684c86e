"""Rounds of candidates that are shown the best and the worst so far, and what a verifier says of them; lossy.

Iterative agent decoding (IAD, Chakraborty et al., arXiv:2504.01931), from the text of the paper: in each of T
rounds N texts are sampled (temperature .6); a verifier scores them; the next round's prompt has the best and the worst
text so far with their scores and what was said about the best. The best ever is the answer; a score of `stop` ends it.
The words of the prompt are our own choice.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Annotated, Any

from edgedec.decoding.context import Context
from edgedec.errors import ContextFull
from edgedec.plugins import Opt
from edgedec.search.branch import Branch
from edgedec.search.facts import SearchFacts
from edgedec.search.host import SearchHost
from edgedec.search.options import Command, N, Temperature, Timeout, TopP
from edgedec.search.rolling import roll
from edgedec.search.room import Room, read
from edgedec.search.scoring import Score, Scorer, needed, scored
from edgedec.search.trials import sampled

FACTS = SearchFacts(operator=("command",), paper="arXiv:2504.01931", rests="text; the prompt's words are ours")
SHOWN = "\n\nBest answer so far (score {best:g}):\n{text}{said}\n\nWorst answer so far (score {worst:g}):\n{bad}\n\n"
AGAIN = "A better answer:\n"


def make(
    host: SearchHost,
    n: N = 4,
    rounds: Annotated[int, Opt("Rounds at most.", 1, 64)] = 3,
    stop: Annotated[float, Opt("A score that is good enough.")] = 1.0,
    feedback: Annotated[bool, Opt("false: each round has the prompt alone: best of n times rounds.")] = True,
    temperature: Temperature = 0.6,
    top_p: TopP = 1.0,
    command: Command = "",
    timeout: Timeout = 10.0,
) -> Refine:
    scorer = needed(host, "refine", command, timeout)
    return Refine(scorer, n, rounds if feedback else -rounds, stop, temperature, top_p)


def asked(prompt: str, best: tuple[str, Score], worst: tuple[str, Score]) -> str:
    """The prompt of a round after the first."""
    said = f"\nAbout it: {best[1].feedback}" if best[1].feedback else ""
    shown = SHOWN.format(best=best[1].value, text=best[0], said=said, worst=worst[1].value, bad=worst[0])
    return prompt + shown + AGAIN


class Refine:
    """rounds: how many it took. A negative number of rounds: without feedback."""

    def __init__(self, scorer: Scorer, n: int, rounds: int, stop: float, temperature: float, top_p: float) -> None:
        self._scorer, self.width, self._most, self._stop = scorer, n, abs(rounds), stop
        self._shows, self._change, self.rounds = rounds > 0, sampled(temperature, top_p), 0

    def run(self, room: Room) -> Generator[Any, Any, Branch]:
        root = yield from room.root()
        seen = list[tuple[Branch, str, Score]]()
        first = root
        while True:
            branches = room.spread(first, self.width)
            yield from roll(room, branches, change=self._change)
            alive = [branch for branch in branches if branch.finish != "dead"]
            scores = yield from scored(room, alive, self._scorer)
            seen += [(one, room.text(one), score) for one, score in zip(alive, scores, strict=True)]
            self.rounds += 1
            best = max(seen, key=lambda one: one[2].value)
            worst = min(seen, key=lambda one: one[2].value)
            seen = [best] if best is worst else [best, worst]
            if best[2].value >= self._stop or self.rounds == self._most:
                return best[0]
            text = asked(room.prompt(), best[1:], worst[1:]) if self._shows else ""
            first = yield from self._next(room, text)

    def _next(self, room: Room, text: str) -> Generator[Any, Any, Branch]:
        """The beginning of a further round, with a prompt of its own."""
        own = room.context
        ids = room.host.tokenizer().encode(text) if text else own.ids[: room.n_prompt]
        if len(ids) + room.most > own.cache.capacity:
            raise ContextFull(
                f"--search refine: a prompt of {len(ids)} tokens with two answers, and {room.most} more, do not fit a "
                f"context of {own.cache.capacity}: ask for fewer tokens (-n), or take a larger context"
            )
        context = Context(list(ids), len(ids), room.new_cache(), adapter=own.adapter, modes=own.modes)
        yield from read(context, room.host)
        path = (0, self.rounds)  # no fork has the number 0
        context.rng = room.stream(path)
        return room.branch(context, room.fresh_config(), path)
