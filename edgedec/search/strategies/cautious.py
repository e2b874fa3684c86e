"""Cautious decoding: where the model is unsure, several continuations up to the next punctuation are tried, and the one
of least perplexity is kept; lossy.

Wang et al. (CNTP, arXiv:2507.03038). H: the entropy of the next token in nats, after temperature and top-p; then

    trials = int(1 + (N - 1) * clip((H - low) / (high - low), 0, 1))        low .01, high 1.5

are sampled until one of `.,?!:;)]}`, a line break or the end. The rule rests on the authors' code as others quote
it; that perplexity is the model's own, before temperature, is our choice. N=1 is plain sampling at this temperature.
"""

from __future__ import annotations

from collections.abc import Generator
from math import exp
from typing import Annotated, Any

from edgedec.decoding.messages import Token
from edgedec.plugins import Opt
from edgedec.sampling import draw
from edgedec.search.branch import Branch
from edgedec.search.extending import NextTokens, add_ends, extend, log_softmax
from edgedec.search.facts import SearchFacts
from edgedec.search.host import SearchHost
from edgedec.search.options import Temperature, TopP
from edgedec.search.rolling import roll
from edgedec.search.room import Room, best_of
from edgedec.search.trials import after, entropy, law, sampled

FACTS = SearchFacts(streams="commit", paper="arXiv:2507.03038", rests="authors' code, as quoted")
MARKS = ".,?!:;)]}"


def make(
    host: SearchHost,
    n: Annotated[int, Opt("Trials where the model is least sure.", 1, 64)] = 10,
    low: Annotated[float, Opt("Entropy in nats up to which there is one trial.", 0, 100)] = 0.01,
    high: Annotated[float, Opt("Entropy from which there are n.", above=0, high=100)] = 1.5,
    temperature: Temperature = 0.8,
    top_p: TopP = 0.95,
) -> Cautious:
    return Cautious(host, n, low, max(high, low + 1e-9), temperature, top_p)


def trials(h: float, n: int, low: float, high: float) -> int:
    """How many continuations are tried at an entropy.

    >>> [trials(h, 10, 0.01, 1.5) for h in (0.0, 0.1755, 0.1757, 0.7, 1.5, 9.0)]
    [1, 1, 2, 5, 10, 10]
    """
    return int(1 + (n - 1) * min(max((h - low) / (high - low), 0.0), 1.0))


class Cautious:
    def __init__(self, host: SearchHost, n: int, low: float, high: float, temperature: float, top_p: float) -> None:
        self.width, self._low, self._high = n, low, high
        self._change, self._until = sampled(temperature, top_p), after(host.tokenizer, MARKS)

    def run(self, room: Room) -> Generator[Any, Any, Branch]:
        branch = yield from room.root()
        while not branch.finish and len(branch.tokens) < room.most:
            branch = yield from self._further(room, branch)
            yield from room.commit(branch)
        return branch

    def _further(self, room: Room, branch: Branch) -> Generator[Any, Any, Branch]:
        """The text one token longer where the model is sure, else by the best trial."""
        before = len(branch.tokens)
        (nexts,) = yield from extend(room, [branch], 1, whole=True)
        assert nexts.scores is not None
        probs = law(nexts.scores, self._change(branch.config))
        count = trials(entropy(probs), self.width, self._low, self._high)
        branches = room.spread(branch, count)
        for trial in branches:
            trial.logp = 0.0
            _push(room, trial, nexts, draw(probs, trial.context.rng))
        if count > 1:
            going = [trial for trial in branches if not trial.finish and not self._until(trial, trial.tokens[-1])]
            spare = len(going) < len(branches)
            yield from roll(room, going, until=self._until, change=self._change, spare=spare)
            yield from add_ends(room, going)
        alive = [trial for trial in branches if trial.finish != "dead"]
        kept = best_of(alive, lambda trial: -perplexity(trial, before))
        room.keep([kept])
        return kept


def _push(room: Room, branch: Branch, nexts: NextTokens, token: int) -> None:
    assert nexts.logits is not None
    room.counts.tokens += 1
    chosen: Token = nexts.token(token, room.config.logprobs)
    branch.push(chosen, float(log_softmax(nexts.logits)[token]))


def perplexity(trial: Branch, before: int) -> float:
    """Of the tokens after the first `before`, the end counted if one was drawn."""
    return exp(-trial.logp / max(trial.length - before, 1))
