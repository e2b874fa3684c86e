"""The room of a search: the branches of one text, their steps and rolls, what is delivered, and the counts."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from edgedec.cache import Cache
from edgedec.decoding.apply_policy import settle
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.constraint import ConstraintHooks, limit_of
from edgedec.decoding.context import Context
from edgedec.decoding.messages import Completed, Request, Stats, Token
from edgedec.decoding.reading import read_source
from edgedec.decoding.streams import RandomStreams
from edgedec.errors import ContextFull, UsageError
from edgedec.runtime import Call, Rows
from edgedec.search.branch import Branch
from edgedec.search.host import SearchHost
from edgedec.search.record import SearchRecord
from edgedec.text.stream import TextStream

Reading = Generator[Request, Completed, None]


@dataclass
class SearchCounts:
    """candidates: branches that were made; forwards: of the search; tokens: that its branches drew, those of dropped
    ones included; latents: steps that read no token; scorer_calls: texts that a scorer was given."""

    candidates: int = 0
    forwards: int = 0
    tokens: int = 0
    latents: int = 0
    scorer_calls: int = 0

    def report(self) -> dict[str, int]:
        return asdict(self)


class Room:
    """The branches of one generation. `forks`: the contexts of those that are kept, for the batch's account of pages;
    `ranked`: the texts that the search ended with, the best first, if it has several; `record`: of its branches, if one
    is wanted."""

    def __init__(self, host: SearchHost, context: Context, config: GenerationConfig, stats: Stats) -> None:
        self.host, self.context, self.config, self.stats = host, context, config, stats
        self.ends, self.counts = config.ends(host.eos), SearchCounts()
        self.forks = list[Context]()
        self.ranked: Sequence[Branch] = ()
        self.record: SearchRecord | None = None
        self._delivered, self._closing = list[int](), dict[Callable[[], None], None]()
        self._streams = RandomStreams(context.rng)
        self.n_prompt = len(context.ids)

    @property
    def most(self) -> int:
        """The most tokens of a text: the limit, or what the context has room for."""
        room = self.context.cache.capacity - self.n_prompt
        return room if self.config.max_tokens is None else min(self.config.max_tokens, room)

    @property
    def limit(self) -> str:
        """Why a text of the most tokens ends."""
        return "length" if self.most == self.config.max_tokens else "context"

    def root(self) -> Generator[Request, Completed, Branch]:
        """The text itself as a branch, its prompt read but for the last token."""
        if self.n_prompt >= self.context.cache.capacity:
            raise ContextFull(f"{self.n_prompt} tokens leave a context of {self.n_prompt} no room: shorten the prompt")
        yield from read(self.context, self.host)
        return self.branch(self.context.fork(), self.fresh_config())

    def branch(self, context: Context, config: GenerationConfig, path: tuple[int, ...] = ()) -> Branch:
        """A new branch of this context, with the state of the config's own constraint and processors. path: of a text
        with another prompt, whose forks have other random streams."""
        context.hooks = ConstraintHooks(parks=self.context.hooks.parks)
        stream = TextStream(self.host.tokenizer(), config.stop, context.ids) if config.stop else None
        if config.constraint is not None:
            limit_of(config.constraint, self.most)
        self.counts.candidates += 1
        found = Branch(context, config, self.ends, self._streams, stream, path)
        self.keep([found])
        return found

    def new_cache(self) -> Cache:
        """An empty cache, for a text with another prompt."""
        cache = self.context.cache.fork()
        cache.truncate(0)
        return cache

    def stream(self, path: tuple[int, ...]) -> np.random.Generator:
        """The generator of a text with this path."""
        return self._streams.of(path)

    def fresh_config(self) -> GenerationConfig:
        """The generation's config with constraint and processors as at its beginning."""
        constraint = self.config.constraint
        constraint = None if constraint is None else constraint.fork()
        return replace(self.config, constraint=constraint, processors=tuple(p.fork() for p in self.config.processors))

    def fork(self, branch: Branch, draws: bool = True) -> Branch:
        """Another branch with the same text. draws: its tokens are drawn."""
        self.counts.candidates += 1
        return branch.fork(draws)

    def spread(self, branch: Branch, n: int) -> list[Branch]:
        """The branch, and n - 1 forks of it."""
        found = [branch, *(self.fork(branch) for _ in range(n - 1))]
        self.keep(found)
        return found

    def keep(self, branches: Iterable[Branch]) -> None:
        """Note which branches live; the pages of others are free once nothing refers to them."""
        kept = list(branches)
        self.forks[:] = [branch.context for branch in kept]
        if self.record is not None:
            self.record.keep(kept, self.counts.forwards)

    def text(self, branch: Branch) -> str:
        """The text of a branch, up to a stop string."""
        stream = TextStream(self.host.tokenizer(), self.config.stop, self.context.ids[: self.n_prompt])
        pieces = [stream.push(token).text for token in branch.tokens]
        return "".join(pieces) + stream.flush().text

    def prompt(self) -> str:
        """The text of the prompt."""
        return self.host.tokenizer().decode(self.context.ids[: self.n_prompt])

    def commit(self, branch: Branch) -> Generator[Token]:
        """Deliver what a branch has more than was delivered: tokens that the search will not take back."""
        new = branch.tokens[len(self._delivered) :]
        assert branch.tokens[: len(self._delivered)] == self._delivered, "a search takes nothing back"
        for token in new:
            self._delivered.append(int(token))
            self.context.ids.append(int(token))
            self.stats.generated += 1
            yield token if self.config.logprobs is not None else Token(token, by=token.by)

    def uses(self, close: Callable[[], None]) -> None:
        """Call `close` when the search ends."""
        self._closing[close] = None

    def close(self) -> None:
        """End the search: no branch holds pages any more, no scorer runs."""
        self.forks.clear()
        for close in self._closing:
            close()

    def release(self) -> None:
        """Let go of the caches of the texts that the search ended with."""
        for branch in self.ranked:
            branch.context = self.context

    def adopt(self, branch: Branch) -> None:
        """Let the text go on from a branch: its cache as far as it was delivered, its random state."""
        own = branch.context
        if own is self.context:  # a text that has ended without its cache
            return
        if own.n_prompt == self.n_prompt and own.ids[: self.n_prompt] == self.context.ids[: self.n_prompt]:
            self.context.cache, self.context.policy = own.cache, own.policy
            own.cache.rollback()
            self.context.forget(min(own.cache.length, len(self.context.ids)))
        self.context.rng = own.rng


def read(context: Context, host: SearchHost) -> Reading:
    """Read all of a text but its last token."""
    if not context.ids:
        raise UsageError("nothing to continue: give at least one token (this tokenizer adds none of its own)")
    context.suit()
    if context.policy is not None:
        yield from settle(context, host.capabilities.prefill_chunk)
        return
    cache = context.cache
    if cache.length >= len(context.ids):
        cache.truncate(len(context.ids) - 1)
    yield from read_source(context)
    while cache.length < len(context.ids) - 1:
        size = context.chunk(host.capabilities.chunk(cache.length))
        rows = Rows.chain(context.ids[cache.length : -1][:size], cache.length)
        yield Call(rows, cache, adapter=context.adapter)
        cache.commit(range(len(rows)))


def best_of(branches: Sequence[Branch], key: Any) -> Branch:
    """The branch of the largest key, the first of equals."""
    return max(enumerate(branches), key=lambda item: (key(item[1]), -item[0]))[1]
