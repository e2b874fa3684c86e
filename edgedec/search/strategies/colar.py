"""A chain of thought in rows that are no tokens, each worth `r` of them, before the text; for trained models; lossy.

CoLaR, compressed latent reasoning (Tan et al., arXiv:2505.16552), from the authors' code (github
xiaomi-research/colar). After the prompt, "(Thinking speed: r)" and a separator:

    row = mean + deviation * noise       of the latent head on the last state; it takes the place of an embedding
    again, until a token that is sampled from the model's own head after the row is the separator, or `most` rows

then a separator, and the text as it is always decoded. The token is sampled at temperature 1 and without processors.
The rows are no part of the text: the next turn reads prompt and answer without them.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Annotated, Any

import numpy as np

from edgedec.errors import ContextFull, RuntimeUnavailable, UsageError
from edgedec.plugins import Opt
from edgedec.runtime import Outputs, suits
from edgedec.search.branch import Branch
from edgedec.search.extending import forwarded, log_softmax
from edgedec.search.facts import SearchFacts
from edgedec.search.host import SearchHost
from edgedec.search.latent_head import LatentHead, open_latent_head
from edgedec.search.rolling import roll
from edgedec.search.room import Room, read

FACTS = SearchFacts(streams="commit", paper="arXiv:2505.16552", rests="authors' code")
_WHAT = "--search colar"
_PART = 16  # tokens that are delivered at a time


def make(
    host: SearchHost,
    r: Annotated[int, Opt("Tokens that a row stands for, at most those of the training.", 1, 64)] = 5,
    most: Annotated[int, Opt("Rows at most.", 1, 4096)] = 64,
    spread: Annotated[float, Opt("Factor of the rows' standard deviations; 0: their means.", 0, 10)] = 1.0,
) -> LatentReasoning:
    if not host.capabilities.embeddings or not host.capabilities.hidden:
        raise RuntimeUnavailable(f"{_WHAT}: this engine runs no rows of embeddings, or gives no hidden states")
    head = open_latent_head(host.model, _WHAT)
    if r > head.facts.most:
        raise UsageError(f"{_WHAT}: r={r}: the model was trained for rows of at most {head.facts.most} tokens")
    speed = host.tokenizer().encode(head.facts.opening(r), around=False)
    return LatentReasoning(head, [*speed, head.separator], most, spread)


class LatentReasoning:
    """opening: the tokens after the prompt; besides: the most rows that are no text."""

    width = 1

    def __init__(self, head: LatentHead, opening: list[int], most: int, spread: float) -> None:
        self._head, self._opening, self._most, self._spread = head, opening, most, spread
        self.besides = len(opening) + most + 1

    def run(self, room: Room) -> Generator[Any, Any, Branch]:
        branch = yield from self._asked(room)
        yield from self._reasoned(room, branch)
        while not branch.finish and len(branch.tokens) < room.most:
            yield from roll(room, [branch], most=_PART)
            yield from room.commit(branch)
        return branch

    def _asked(self, room: Room) -> Generator[Any, Any, Branch]:
        """The prompt and the opening, read but for the last token."""
        own = room.context
        if own.policy is not None:
            raise UsageError(f"{_WHAT}: does not go with a cache policy, which may read the text again")
        before = room.n_prompt + self.besides
        if before >= own.cache.capacity:
            raise ContextFull(
                f"{_WHAT}: {room.n_prompt} tokens and {self.besides} rows leave a context of {own.cache.capacity} no "
                "room: shorten the prompt, or take fewer rows (most=…)"
            )
        yield from read(own, room.host)
        context = own.fork()
        context.ids = [*context.ids, *self._opening]
        yield from read(context, room.host)
        if not suits(context.cache, min(before + room.most, own.cache.capacity)):
            raise UsageError(f"{_WHAT}: the text may grow past where this model's ropes change: ask for fewer tokens")
        return room.branch(context, room.fresh_config())

    def _reasoned(self, room: Room, branch: Branch) -> Generator[Any, Any, None]:
        """The rows, and the separator after them, which is not read yet. In the text's list a separator stands for each
        row."""
        head, context = self._head, branch.context
        state = Outputs(hidden=(head.block,))
        (result,) = yield from forwarded(room, [branch], [state])
        for _ in range(self._most):
            branch.embedding = head.draw(result.hidden[head.block][-1:], self._spread, context.rng)
            context.ids.append(head.separator)
            (result,) = yield from forwarded(room, [branch], [state._replace(logits=True)])
            room.counts.latents += 1
            assert result.logits is not None
            if context.rng.random() < np.exp(log_softmax(result.logits[-1])[head.separator]):
                break
        context.ids.append(head.separator)
        context.n_prompt = len(context.ids)
