"""A session: one text, its cache, and what is done with them.

A prompt is always the whole text. What it shares with the session's text so far is not read again
(longest common prefix), so chat turns and retries cost only what is new.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast

import numpy as np

from edgedec.cache.prefixes import common
from edgedec.cache.snapshot import Snapshot, arrays_of, read_snapshot, write_snapshot
from edgedec.decoding.batching import Batch, Job
from edgedec.decoding.constraint import Constraint
from edgedec.decoding.context import Context
from edgedec.decoding.loop import Ask, Stats, Steps, Token, Turn, drive, steps
from edgedec.drafters import Host, Tables
from edgedec.errors import UsageError
from edgedec.sampling import Sampling
from edgedec.speculation.choose import make_speculation
from edgedec.storage.files import cache_folder, replacing
from edgedec.text.tokenizer import Detokenizer, StopStrings

if TYPE_CHECKING:
    from edgedec.model import Model

GREEDY = Sampling()


class TokenOptions(TypedDict, total=False):
    """How to generate: see `Session.tokens` for each."""

    max_tokens: int | None
    sampling: Sampling
    stop_tokens: Sequence[int]
    ignore_eos: bool
    logprobs: int | None
    constraint: Constraint | None
    trace: list[Turn] | None


class Options(TokenOptions, total=False):
    """How to generate text: `stop`: strings that end it."""

    stop: str | Sequence[str]


@dataclass(frozen=True)
class Piece:
    """Text that is certain, and the token that made it so (None: what was held back until the end)."""

    text: str
    token: Token | None


class Session:
    """Made by `Model.session()`. Not for two threads at once; sessions of one model may run in several."""

    def __init__(self, model: Model, capacity: int, sinks: int | None, spec: str, tables: Tables | None = None) -> None:
        self.model = model
        self._spec, self._tables = spec, tables
        self._drafter = make_speculation(spec, Host(model.runtime, model.bundle, lambda: model.tokenizer, tables))
        self._context = Context([], 0, model.runtime.new_cache(capacity), sinks)
        self.stats = Stats()
        self._running: Generator[Token] | None = None

    @property
    def ids(self) -> list[int]:
        """All tokens of the text so far."""
        return list(self._context.ids)

    @property
    def capacity(self) -> int:
        """How many tokens the context holds."""
        return self._context.cache.capacity

    @property
    def finish_reason(self) -> str:
        """Why the last generation ended: eos, stop, length, context; empty if it was not finished."""
        return self.stats.finish

    def generate(self, prompt: str | Sequence[int] | None = None, **options: Unpack[Options]) -> Iterator[str]:
        """The text that follows `prompt`, piece by piece; None goes on with the session's text.

        Ends at the model's end token, at a stop string or token (neither is yielded), after
        `max_tokens`, or, if that is None, when the context is full. `options` are those of `stream`.

        >>> "".join(edgedec.open("nano").session().generate("Once upon a time", max_tokens=8))
        """
        return (piece.text for piece in self.stream(prompt, **options) if piece.text)

    def stream(self, prompt: str | Sequence[int] | None = None, **options: Unpack[Options]) -> Iterator[Piece]:
        """As `generate`, with the token behind each piece. `prompt` may be text or tokens."""
        tokenizer, stop = self.model.tokenizer, options.pop("stop", ())
        ids = tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        stops = StopStrings([stop] if isinstance(stop, str) else stop)
        tokens = self.tokens(ids, **options)  # type: ignore[misc]
        return _pieces(tokens, Detokenizer(tokenizer, prompt_ids=self._context.ids), stops, self.stats)

    def tokens(
        self,
        ids: Sequence[int] | None = None,
        *,
        max_tokens: int | None = None,
        sampling: Sampling = GREEDY,
        stop_tokens: Sequence[int] = (),
        ignore_eos: bool = False,
        logprobs: int | None = None,
        constraint: Constraint | None = None,
        trace: list[Turn] | None = None,
    ) -> Generator[Token]:
        """The tokens that follow `ids`, each an int with `.token`, `.logprob`, `.top` and `.by`.

        `logprobs=n` fills `.logprob` and the n most likely `.top`; `trace` is given every call.
        None goes on with the session's text, and `constraint` (`edgedec.constraints`) where it stands; a new
        prompt begins it anew. A new generation ends the one before, if it still runs.
        """
        self._running = drive(
            self.model.runtime,
            self._loop(ids, max_tokens, sampling, stop_tokens, ignore_eos, logprobs, constraint, trace),
        )
        return self._running

    def submit(
        self,
        batch: Batch,
        ids: Sequence[int] | None,
        tell: Callable[[Token | None], None],
        **options: Unpack[TokenOptions],
    ) -> Job:
        """As `tokens`, as one of the texts of a batch: `tell` is given each token, and None at the end.

        The session belongs to the batch until then, and to its thread as long as both are there: other texts of the
        batch may take over the beginning of its cache.
        """
        loop = self._loop(ids, **options)
        most = options.get("max_tokens")
        need = self.capacity if most is None else min(self.capacity, len(self._context.ids) + most)
        return batch.add(self._context, loop, tell, need, shares=True)

    def _loop(
        self,
        ids: Sequence[int] | None,
        max_tokens: int | None = None,
        sampling: Sampling = GREEDY,
        stop_tokens: Sequence[int] = (),
        ignore_eos: bool = False,
        logprobs: int | None = None,
        constraint: Constraint | None = None,
        trace: list[Turn] | None = None,
    ) -> Steps:
        """What `tokens` is asked for, as a loop that somebody has to drive."""
        stops = frozenset(stop_tokens) | (frozenset() if ignore_eos else self.model.eos)
        ask = Ask(sampling, max_tokens, stops, logprobs)
        self._stop()
        self.stats = Stats()
        if ids is not None:
            self._read(list(map(int, ids)))
            if constraint is not None:
                constraint.reset()
        if sampling.seed is not None:
            self._context.rng = np.random.default_rng(sampling.seed)
        self._context.company = 0
        return steps(self._context, ask, self._drafter, constraint, self.stats, trace)

    def chat(self, messages: Sequence[Mapping[str, object]], **options: Unpack[Options]) -> Iterator[str]:
        """The answer to `messages`, as `generate` gives text."""
        return self.generate(self.model.chat_ids(messages), **options)

    def fork(self) -> Session:
        """An independent session with the same text and a copy of its cache."""
        context = self._context
        twin = Session(self.model, self.capacity, context.sinks, self._spec, self._tables)
        twin._context.ids, twin._context.n_prompt = list(context.ids), context.n_prompt
        twin._context.cache = context.cache.fork()
        twin._context.rng.bit_generator.state = context.rng.bit_generator.state
        if self._tables is None:
            twin._drafter.restore(self._drafter.state())
        return twin

    def report(self) -> dict[str, Any]:
        """What the drafters did so far, and what the governor chose."""
        return self._drafter.report()

    def learned(self) -> Path:
        """Where `keep` writes: a file for this bundle and these drafters."""
        names = hashlib.sha256(self._spec.encode()).hexdigest()[:8]
        return cache_folder() / "learned" / f"{self.model.bundle.digest[:32]}-{names}.npz"

    def keep(self) -> None:
        """Keep what the drafter learned for later sessions of this bundle: `Model.session(learn=True)` takes it up."""
        path, state = self.learned(), self._drafter.state()
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            np.savez(file, **cast(Any, state))

    def recall(self) -> None:
        """Take up what an earlier session kept; nothing if there is none, or it is damaged."""
        try:
            with np.load(self.learned(), allow_pickle=False) as kept:
                self._drafter.restore(dict(kept))
        except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, UsageError):
            self._drafter.reset()

    def save(self, path: str | PathLike[str]) -> None:
        """Write the text, its cache, the state of the random draws and what the drafter learned to a file."""
        context = self._context
        write_snapshot(
            path,
            Snapshot(
                bundle=self.model.bundle.digest,
                ids=tuple(context.ids),
                n_prompt=context.n_prompt,
                kv=context.cache.kind,
                rng=dict(context.rng.bit_generator.state),
                length=context.cache.length,
                learned=arrays_of(state := self._drafter.state()),
            ),
            context.cache.save(),
            state,
        )

    def load(self, path: str | PathLike[str]) -> None:
        """Become the session that was saved; it goes on exactly as that one would have."""
        context = self._context
        snapshot, data, state = read_snapshot(path, self.model.bundle.digest, context.cache)
        self._stop()
        self._drafter.restore(state)
        context.cache.load(data)
        context.ids, context.n_prompt = list(snapshot.ids), snapshot.n_prompt
        context.rng.bit_generator.state = snapshot.rng
        self._drafter.reset()

    def _stop(self) -> None:
        """End the generation that still runs: the text under it is about to change."""
        if self._running is not None:
            self._running.close()

    def _read(self, ids: list[int]) -> None:
        """Make `ids` the text; the cache keeps what they share with the text before."""
        vocab = self.model.spec.vocab_size
        for token in ids:
            if not 0 <= token < vocab:
                raise UsageError(f"token {token} is outside the vocabulary of {vocab}")
        context = self._context
        context.cache.truncate(min(common(ids, context.ids), context.cache.length))
        context.ids, context.n_prompt = ids, len(ids)
        self._drafter.reset()


def _pieces(tokens: Generator[Token], detokenizer: Detokenizer, stops: StopStrings, stats: Stats) -> Iterator[Piece]:
    with closing(tokens):
        for token in tokens:
            text, hit = stops.push(detokenizer.push(token))
            if hit:
                stats.finish = "stop"
            yield Piece(text, token)
            if hit:
                return
        text, hit = stops.push(detokenizer.flush())
        rest, hit_late = stops.flush()
        if hit or hit_late:
            stats.finish = "stop"
        if text or rest:
            yield Piece(text + rest, None)
