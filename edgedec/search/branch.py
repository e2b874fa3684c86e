"""A branch of a search: one text among several, with a cache, a constraint and a random stream of its own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from edgedec.decoding.chain import make_chain
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.constraint import ConstraintHooks
from edgedec.decoding.context import Context
from edgedec.decoding.logits import LogitsChain
from edgedec.decoding.messages import Token
from edgedec.decoding.streams import RandomStreams
from edgedec.runtime import Hidden
from edgedec.text.stream import TextStream


@dataclass(eq=False)
class Branch:
    """A text after the prompt. config: the generation's, with the branch's own constraint and processors; ends: the
    tokens that end it. path: its fork numbers, forks: how many it has had. tokens: of the text, without the end token;
    logp: the sum of their log-probabilities, that of the end token included, where these were asked for. weight: the
    logarithm of its weight among particles. value: what a scorer says of it. finish: why it ended, "" while it goes on:
    eos, stop, length, context, or dead where a constraint allows nothing. stream: finds stop strings, None if there are
    none. embedding: [1, hidden_size], what its next step reads in place of its last token."""

    context: Context
    config: GenerationConfig
    ends: frozenset[int]
    streams: RandomStreams
    stream: TextStream | None = None
    path: tuple[int, ...] = ()
    forks: int = 0
    tokens: list[Token] = field(default_factory=list)
    logp: float = 0.0
    weight: float = 0.0
    value: float = 0.0
    finish: str = ""
    embedding: Hidden | None = None
    _chain: LogitsChain | None = None

    @property
    def chain(self) -> LogitsChain:
        """The processors of its next token, for steps outside of the decode loop."""
        if self._chain is None:
            self._chain = make_chain(self.rest(), self.context, self.ends)
        return self._chain

    @property
    def length(self) -> int:
        """The tokens that its score counts: an end token is one."""
        return len(self.tokens) + (self.finish == "eos")

    def renew(self) -> None:
        """Make the processors anew at the next step: a loop has gone on without them."""
        self._chain = None

    def rest(self, most: int | None = None) -> GenerationConfig:
        """The config of a loop that continues it by at most so many tokens."""
        return self.config.after(len(self.tokens), most)

    def fork(self, draws: bool = True) -> Branch:
        """Another branch with the same text, and a state of its own everywhere. draws: its tokens are drawn, so that it
        has a random stream of its own."""
        self.forks += 1
        path, config = (*self.path, self.forks), self.config
        if config.constraint is not None or config.processors:
            constraint = None if config.constraint is None else config.constraint.fork()
            processors = tuple(processor.fork() for processor in config.processors)
            config = replace(config, constraint=constraint, processors=processors)
        context = self.context.fork(self.streams.of(path) if draws else self.context.rng)
        if self.context.hooks.parks:
            context.hooks = ConstraintHooks(parks=True)
        stream = None if self.stream is None else self.stream.fork()
        twin = Branch(context, config, self.ends, self.streams, stream, path, 0, list(self.tokens))
        if self._chain is not None and not len(self._chain):  # without processors it has no state
            twin._chain = self._chain
        twin.logp, twin.weight, twin.value, twin.finish = self.logp, self.weight, self.value, self.finish
        return twin

    def push(self, token: Token, logp: float) -> None:
        """Add a token that a step chose; an end token ends the branch and is no part of its text."""
        self.logp += logp
        if token in self.ends:
            self.finish = "eos"
            return
        self.context.ids.append(int(token))
        self.chain.accept(token)
        self.note(token)
        if not self.finish and self.config.constraint is not None and self.config.constraint.done and not self.ends:
            self.finish = "eos"

    def note(self, token: Token) -> bool:
        """Add a token that is in the context already; returns whether it completes a stop string, which ends the
        branch."""
        self.tokens.append(token)
        if self.stream is not None and self.stream.push(token).stopped:
            self.finish = "stop"
        return self.finish == "stop"
