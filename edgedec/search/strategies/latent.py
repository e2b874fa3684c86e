"""Latent steps: where the model is unsure it reads a mixture of tokens in place of the one that is written; lossy.

LEAD (arXiv:2603.13366), from the authors' code (github mlrm-LEAD/mlrm-LEAD). The likeliest token is written. With
H the entropy of the next token in nats, and a reference that is H at the last switch:

    H above it, `wait` steps or more after the switch     the next steps read sum p_i E_i, E_i the tokens' embeddings
    H below it                                            the next steps read the token's own embedding again, at once

at most `switches` times. Its share of an image embedding at the first latent step is left out: no images here.
That the mixture is of the `top` likeliest tokens is our own choice; top=1 is greedy decoding. What latent steps left in
the cache is no other text's: it is forgotten at the end.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Annotated, Any

from edgedec.errors import RuntimeUnavailable, UsageError
from edgedec.plugins import Opt
from edgedec.search.branch import Branch
from edgedec.search.embeddings import KnownEmbeddings
from edgedec.search.extending import extend
from edgedec.search.facts import SearchFacts
from edgedec.search.host import SearchHost
from edgedec.search.room import Room
from edgedec.search.trials import entropy_of

FACTS = SearchFacts(streams="commit", paper="arXiv:2603.13366", rests="authors' code; without images")


def make(
    host: SearchHost,
    wait: Annotated[int, Opt("Steps after a switch before the next latent one.", 0, 65_536)] = 128,
    switches: Annotated[int, Opt("Latent passages at most.", 0, 65_536)] = 5,
    top: Annotated[int, Opt("Tokens of the mixture.", 1, 4096)] = 64,
) -> LatentSteps:
    if not host.capabilities.embeddings:
        raise RuntimeUnavailable("--search latent: this engine runs no rows of embeddings")
    return LatentSteps(Switches(wait, switches), top)


class Switches:
    """Whether the next step is a latent one.

    Entropies 1, 2, 1.5, 3, 2 with wait 0: token (reference 1), latent (2), token (1.5), latent (3), token (2).
    """

    def __init__(self, wait: int, most: int) -> None:
        self._wait, self._most = wait, most
        self._reference, self._since, self.latent, self.passages = -1.0, 0, False, 0

    def after(self, h: float) -> bool:
        """The answer after a step whose next token has this entropy."""
        if self._reference < 0 or (self.latent and h < self._reference):
            self._switch(h, False)
        elif not self.latent and h > self._reference and self._since >= self._wait and self.passages < self._most:
            self._switch(h, True)
        self._since += 1
        return self.latent

    def _switch(self, h: float, latent: bool) -> None:
        self._reference, self._since, self.latent = h, 0, latent
        self.passages += latent


class LatentSteps:
    width = 1

    def __init__(self, switches: Switches, top: int) -> None:
        self._switches, self._top = switches, top
        self._embeddings = KnownEmbeddings()

    def run(self, room: Room) -> Generator[Any, Any, Branch]:
        branch = yield from room.root()
        if branch.context.policy is not None:
            raise UsageError("--search latent: does not go with a cache policy, which may read the text again")
        while not branch.finish and len(branch.tokens) < room.most:
            (nexts,) = yield from extend(room, [branch], self._top, whole=True)
            branch.embedding = None
            assert nexts.scores is not None
            room.counts.tokens += 1
            branch.push(nexts.token(nexts.best, room.config.logprobs), nexts.logps[0])
            yield from room.commit(branch)
            if self._switches.after(entropy_of(nexts.scores)) and not branch.finish:
                branch.embedding = yield from self._embeddings.mixed(room, nexts.ids, nexts.logps)
                room.counts.latents += 1
        if room.counts.latents:
            branch.context.forget(min(branch.context.cache.length, room.n_prompt - 1))
        return branch
