"""Sequential Monte Carlo: texts follow the model's own law of what a constraint allows; exact only as n grows: lossy.

Lew et al. (arXiv:2306.03081) and Lipkin et al. (arXiv:2504.05410), text and authors' code: n particles are drawn token
by token, each by adaptive weighted rejection (`edgedec.sampling.awrs`), whose weight estimates the mass that the
constraint leaves. Where

    (sum w)^2 / sum w^2 < n * threshold                    threshold 1/2

they are resampled in proportion to their weights, systematically, and all weights are equal again. Texts whose tokens
are merely masked are of another law: a mask never takes back a token that leads where little is allowed.

One particle, drawn by its weight, is the answer. The temperature is the generation's; its cuts are left out, so that no
token is beyond reach. n=1 is a weighed draw (`awrs`), byte for byte.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np

from edgedec.decoding.constraint import Constraint
from edgedec.decoding.messages import Token
from edgedec.decoding.weighed import weighed_token
from edgedec.errors import UsageError
from edgedec.plugins import Opt
from edgedec.runtime import ALL_LOGITS, CallResult
from edgedec.sampling import Sampling, logprob, top_logprobs
from edgedec.sampling.distributions import Floats
from edgedec.sampling.smc import shares_of, systematic
from edgedec.search.branch import Branch
from edgedec.search.extending import check_chain, forwarded
from edgedec.search.facts import SearchFacts
from edgedec.search.host import SearchHost
from edgedec.search.options import WIDEST
from edgedec.search.room import Room

FACTS = SearchFacts(paper="arXiv:2306.03081, arXiv:2504.05410", rests="text and authors' code")


def make(
    host: SearchHost,
    n: Annotated[int, Opt("Particles: texts that are written at the same time.", 1, WIDEST)] = 16,
    threshold: Annotated[float, Opt("Resample below this share of effective particles; 0: never.", 0, 1)] = 0.5,
) -> ParticleSearch:
    sampling = host.config.sampling
    if host.config.constraint is None:
        raise UsageError("--search smc: needs a constraint: without one every text has the same weight")
    if sampling.temperature == 0:
        raise UsageError("--search smc: at temperature 0 nothing is drawn: set a temperature")
    if sampling.extended:
        raise UsageError("--search smc: draws from the whole law: leave out mirostat, XTC and other settings like them")
    return ParticleSearch(n, threshold, replace(sampling, top_k=0, top_p=1.0, min_p=0.0, typical_p=1.0))


class ParticleSearch:
    """resampled: how often; log_mean: the logarithm of the mean weight, an estimate of the mass of all texts that the
    constraint allows."""

    def __init__(self, n: int, threshold: float, sampling: Sampling) -> None:
        self.width, self._threshold, self._sampling = n, threshold, sampling
        self.resampled, self.log_mean = 0, 0.0

    def run(self, room: Room) -> Generator[Any, Any, Branch]:
        rng = room.stream((0,))  # no fork has the number 0
        root = yield from room.root()
        root.config = replace(root.config, awrs=True)
        check_chain(root)
        particles = room.spread(root, self.width)
        self._end(room, particles)
        while not all(one.finish for one in particles):
            going = [one for one in particles if not one.finish]
            results = yield from forwarded(room, going, [ALL_LOGITS] * len(going))
            for one, result in zip(going, results, strict=True):
                self._grow(room, one, result)
            self._end(room, going)
            particles = self._resampled(room, particles, rng)
        return self._chosen(room, particles, rng)

    def _grow(self, room: Room, one: Branch, result: CallResult) -> None:
        """Draw a particle's next token."""
        assert result.logits is not None
        logits, rules = result.logits[0], one.config.constraint
        assert rules is not None
        try:
            scores = one.chain.process(logits, (), {})
            found = weighed_token(rules, scores, self._sampling, one.context.rng.random(), room.stats)
        except UsageError:  # nothing is allowed
            one.finish = "dead"
            return
        room.counts.tokens += 1
        one.weight += found.log_weight
        n = room.config.logprobs
        shown = None if n is None else (logprob(logits, found.token), tuple(top_logprobs(logits, n)))
        one.push(Token(found.token) if shown is None else Token(found.token, *shown), 0.0)

    def _end(self, room: Room, particles: Sequence[Branch]) -> None:
        """Note which texts are complete."""
        for one in particles:
            rules: Constraint | None = one.config.constraint
            if not one.finish and rules is not None and rules.done:
                one.finish = "eos"
            elif not one.finish and len(one.tokens) >= room.most:
                one.finish = room.limit

    def _resampled(self, room: Room, particles: list[Branch], rng: np.random.Generator) -> list[Branch]:
        """The particles, drawn anew where few have most of the weight; the first copy of each is itself."""
        shares, log_mean = self._shares(particles)
        if 1 / float((shares**2).sum()) >= self._threshold * len(particles) or all(one.finish for one in particles):
            return particles
        chosen = systematic(shares, float(rng.random()))
        made = [particles[k] if chosen.index(k) == i else room.fork(particles[k]) for i, k in enumerate(chosen)]
        for one in made:
            one.weight = 0.0
        room.keep(made)
        self.resampled, self.log_mean = self.resampled + 1, self.log_mean + log_mean
        return made

    def _shares(self, particles: Sequence[Branch]) -> tuple[Floats, float]:
        """The normalised weights, and the logarithm of their mean."""
        logs = [-np.inf if one.finish == "dead" else one.weight for one in particles]
        shares, log_mean = shares_of(logs)
        if not shares.any():
            raise UsageError("--search smc: every text came to a dead end: take more particles (n=…)")
        return shares, log_mean

    def _chosen(self, room: Room, particles: Sequence[Branch], rng: np.random.Generator) -> Branch:
        shares, log_mean = self._shares(particles)
        self.log_mean += log_mean
        for one, share in zip(particles, shares, strict=True):
            one.value = float(share)
        room.ranked = sorted(particles, key=lambda one: -one.value)
        return particles[_drawn(shares, rng)]


def _drawn(shares: Floats, rng: np.random.Generator) -> int:
    """A place, drawn in proportion to the shares."""
    return min(int(np.searchsorted(np.cumsum(shares), rng.random(), side="right")), int(np.flatnonzero(shares)[-1]))
