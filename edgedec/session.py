"""A session: one text, its cache, and the operations on them.

A prompt is always the whole text. Its longest common prefix with the session's text so far is not read again, so chat
turns and retries cost only their new tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.gathering import held_besides
from edgedec.decoding.host_time import Gaps
from edgedec.decoding.loop import decode_loop
from edgedec.decoding.messages import DecodeLoop, ForkLoop, Stats, Token
from edgedec.decoding.pieces import TextPiece, pieces
from edgedec.decoding.placed import with_tokens
from edgedec.decoding.runner import run_loop
from edgedec.decoding.saving import load_context, save_context
from edgedec.decoding.scheduler.batch import Batch, Job
from edgedec.decoding.scoring import next_probs, score, scored
from edgedec.diffusion.decoding import DiffusionDecoding, check_ids, check_scores, shares, without_mask
from edgedec.drafters import Tables
from edgedec.errors import UsageError
from edgedec.given_options import with_options
from edgedec.opened import OpenedModel
from edgedec.policies import CachePolicy
from edgedec.runtime import Adapter
from edgedec.search.found import SearchResult
from edgedec.search.opening import as_job, found, open_search
from edgedec.search.running import SearchRun
from edgedec.speculation.choose import session_drafter
from edgedec.speculation.state import load_state, save_state, state_path
from edgedec.text.stream import TextStream
from edgedec.verbs import PromptVerbs


class Session(PromptVerbs):
    """Made by `Model.session()`. Not for two threads at once; sessions of one model may run in several."""

    def __init__(
        self,
        model: OpenedModel,
        capacity: int,
        sinks: int | None,
        speculate: str,
        tables: Tables | None = None,
        adapter: Adapter | None = None,
        policy: CachePolicy | None = None,
        diffusion: str = "",
    ) -> None:
        self.model, self._speculate = model, speculate
        self._diffusion = DiffusionDecoding.of(model, diffusion, speculate, policy)
        self._new_drafter = partial(session_drafter, model, speculate if self._diffusion is None else "off", tables)
        self._drafter = self._new_drafter()
        cache = model.runtime.new_cache(capacity)
        modes = model.bundle.manifest.modes
        self._context = Context([], 0, cache, sinks, adapter=adapter, policy=policy, modes=modes)
        self.stats = Stats()
        self._running: Generator[Token] | None = None
        self._search: SearchRun | None = None

    @property
    def ids(self) -> list[int]:
        """All tokens of the text so far."""
        return list(self._context.ids)

    @property
    def capacity(self) -> int:
        """How many tokens the context holds."""
        return self._context.cache.capacity

    @property
    def between_calls(self) -> float:
        """Seconds of the current or last generation outside of forward calls, those of draft models included."""
        return self._context.gaps.total

    @property
    def finish_reason(self) -> str:
        """The reason for the last generation's end: eos, stop, length, context; empty if it did not finish."""
        return self.stats.finish

    def generate(self, prompt: str | Sequence[int] | None = None, **options: Any) -> Iterator[str]:
        """The text that follows `prompt`, piece by piece; None continues the session's text.

        Ends at the model's end token, at a stop string or token (neither is yielded), after
        `max_tokens`, or, if that is None, when the context is full. `options`: those of `tokens`.

        >>> "".join(edgedec.open("nano").session().generate("Once upon a time", max_tokens=8))
        """
        return (piece.text for piece in self.stream(prompt, **options) if piece.text)

    def stream(
        self,
        prompt: str | Sequence[int] | None = None,
        config: GenerationConfig | None = None,
        *,
        trace: list[Any] | None = None,
        **options: Any,
    ) -> Iterator[TextPiece]:
        """As `generate`, with the token of each piece. `prompt` may be text or tokens."""
        tokenizer = self.model.tokenizer
        config = with_options(self.model, config, options)
        ids = tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        tokens = self.tokens(ids, config, trace=trace)
        return pieces(tokens, TextStream(tokenizer, config.stop, self._context.ids), self.stats)

    def tokens(
        self,
        ids: Sequence[int] | None = None,
        config: GenerationConfig | None = None,
        *,
        trace: list[Any] | None = None,
        **options: Any,
    ) -> Generator[Token]:
        """The tokens that follow `ids`, each an int with `.token`, `.logprob`, `.top` and `.by`.

        `options` are the fields of `GenerationConfig`, and fuse="cfg:scale=2"; processors and constraint may be words
        too, as in processors="dola:early=[2,4]" and constraint="regex:pattern='[0-9]+'". `trace` collects every call
        (diffusion: every pass; a search: every branch). None continues the session's text and the config's constraint
        in its present state; a new prompt resets the constraint. A new generation ends the one before, if it still
        runs.
        """
        config = with_options(self.model, config, options)
        loop = self._loop(ids, config, trace)
        self._context.gaps = Gaps()
        self._running = run_loop(self.model.runtime, loop, self._context.gaps)
        if shares(self._diffusion):
            self._running = self.model.prefixes.share(self._context, self._running)
        return self._running

    def submit(
        self,
        batch: Batch,
        ids: Sequence[int] | None,
        on_token: Callable[[Token | None], None],
        config: GenerationConfig | None = None,
        on_start: Callable[[], None] = lambda: None,
        on_scores: Callable[[list[Token]], None] | None = None,
        **options: Any,
    ) -> Job:
        """As `tokens`, as one of the sequences of a batch: `on_token` gets each token, and None at the end. `on_scores`
        gets the prompt's tokens with their log-probabilities before that; such a prompt is never found in a cache.

        The session belongs to the batch until then.
        """
        config = with_options(self.model, config, options)
        loop = self._loop(ids, config)
        if on_scores is not None:
            check_scores(self._diffusion)
            chunk = self.model.runtime.capabilities.prefill_chunk
            loop = scored(loop, self._context, self.stats, chunk, config.logprobs or 0, on_scores)
        most = self.capacity if config.max_tokens is None else len(self._context.ids) + config.max_tokens
        need = min(self.capacity, most) + held_besides(config.processors, min(self.capacity, most))
        sharing = on_scores is None and self._context.shareable and shares(self._diffusion)
        job = batch.add(self._context, loop, on_token, need, sharing, on_start)
        return as_job(job, self._search)

    def _loop(
        self, ids: Sequence[int] | None, config: GenerationConfig, trace: list[Any] | None = None
    ) -> DecodeLoop | ForkLoop:
        """The generation of `tokens` as a decoding loop for a runner."""
        self._stop()
        self.stats = Stats()
        if ids is not None:
            self.rewrite(ids)
            if config.constraint is not None:
                config.constraint.reset()
            for processor in config.processors:
                processor.reset()
        config = with_tokens(config, lambda: self.model.tokenizer, self.model.spec.vocab_size)
        if config.sampling.seed is not None:
            self._context.rng = np.random.default_rng(config.sampling.seed)
        self._context.concurrent = 0
        model, capabilities = self.model, self.model.runtime.capabilities
        self._search = open_search(model, self._context, config, self.stats, self._new_drafter, self._diffusion, trace)
        if self._search is not None:
            return self._search.loop
        if self._diffusion is not None:
            return self._diffusion.loop(self._context, config, self.stats, trace)
        config = without_mask(model.bundle.manifest.diffusion, config)
        return decode_loop(self._context, config, self._drafter, self.stats, trace, model.eos, capabilities)

    def search(
        self, words: str | Mapping[str, Any], prompt: str | Sequence[int] | None = None, **options: Any
    ) -> SearchResult:
        """The text that a search finds after `prompt`, as in "beam:width=8" (`edgedec.search`), with the others that it
        ended with. options: those of `tokens`; scorer=f: f(prompt, text) is the worth of a text."""
        text = "".join(self.generate(prompt, search=words, **options))
        return found(self._search, text)

    def append(self, ids: Sequence[int]) -> None:
        """Add tokens to the session's text; they are read by the next call."""
        self._stop()
        self._context.ids += self._checked(ids)
        self._context.n_prompt = len(self._context.ids)

    def rewrite(self, ids: Sequence[int]) -> None:
        """Make these tokens the text; the cache keeps what they share with the text before."""
        context, first, ids = self._context, not self._context.ids, self._checked(ids)
        self._stop()
        context.forget(context.shared(ids))
        context.ids, context.n_prompt = ids, len(ids)
        if not first:
            self._drafter.reset()

    def next_probs(self) -> NDArray[np.float64]:
        """The model's distribution of the next token [vocab_size], before any sampling setting."""
        self._stop()
        check_scores(self._diffusion)
        return next_probs(self.model.runtime, self._context)

    def score(self, ids: Sequence[int] | str) -> list[float]:
        """The log-probability of each of these tokens, or those of a text, after the session's text and those before
        it; the session's text stays as it is."""
        self._stop()
        check_scores(self._diffusion)
        given = self.model.tokenizer.encode(ids, around=False) if isinstance(ids, str) else ids
        return score(self.model.runtime, self._context, self._checked(given))

    def chat(self, messages: Sequence[Mapping[str, object]], **options: Any) -> Iterator[str]:
        """The answer to `messages`, as `generate` gives text."""
        return self.generate(self.model.chat_ids(messages), **options)

    def fork(self) -> Session:
        """An independent session with the same text; on a runtime with pages the cache is shared, not copied."""
        twin = Session.__new__(Session)
        twin.__dict__ |= self.__dict__
        twin._drafter = self._new_drafter()
        twin._context = self._context.fork()
        twin._diffusion = None if self._diffusion is None else self._diffusion.fork()
        twin.stats, twin._running, twin._search = Stats(), None, None
        twin._drafter.inherit(self._drafter)
        return twin

    def report(self) -> dict[str, Any]:
        """The figures of the drafters and of the governor so far; `calls`: those without drafts, by reason
        (`edgedec.speculation.reasons`)."""
        found, calls = self._drafter.report(), self.stats.calls
        return found | {"silent": calls, "calls": {found["why"]: calls}} if "why" in found else found

    def cache_report(self) -> dict[str, Any]:
        """The cache policy in use, whether it is lossy, and how much it keeps; empty without one."""
        policy = self._context.policy
        return {} if policy is None else policy.report(self._context.cache)

    def search_report(self) -> dict[str, Any]:
        """The search of the last generation, and what it took; empty without one."""
        return {} if self._search is None else self._search.report()

    def diffusion_report(self) -> dict[str, Any]:
        """The methods, passes and rows of diffusion decoding; empty for an autoregressive text."""
        return {} if self._diffusion is None else self._diffusion.report(self.stats.generated)

    def drafter_state_path(self) -> Path:
        """Where `save_drafters` writes: a file for this bundle and these drafters."""
        return state_path(self.model.bundle.origin, self._speculate)

    def save_drafters(self) -> None:
        """Save the drafters' state for later sessions of this bundle: `Model.session(learn=True)` loads it."""
        save_state(self.drafter_state_path(), self._drafter)

    def load_drafters(self) -> None:
        """Load the drafters' state of an earlier session; does nothing if there is none, or it is damaged."""
        load_state(self.drafter_state_path(), self._drafter)

    def save(self, path: str | PathLike[str], reread: bool = False) -> None:
        """Write the text, its cache, the random state and the drafter's state to a file; in a store (`edgedec
        sessions`) prefixes that sessions share are stored once. reread: without the cache, which `load` computes again
        from the text and checks."""
        save_context(path, self.model.bundle.origin, self._context, self._drafter, reread)

    def load(self, path: str | PathLike[str]) -> None:
        """Restore a saved session; it continues exactly as the saved one would have."""
        self._stop()
        load_context(path, self.model.bundle.origin, self.model.runtime, self._context, self._drafter)

    def _stop(self) -> None:
        """End a running generation before its text changes."""
        if self._running is not None:
            self._running.close()

    def _checked(self, ids: Sequence[int] | str) -> list[int]:
        """The ids; an error if one is not in the vocabulary."""
        if isinstance(ids, str):
            raise UsageError("text where token ids belong: use stream() or generate(), or model.tokenizer.encode(text)")
        vocab, found = self.model.spec.vocab_size, list(map(int, ids))
        for token in found:
            if not 0 <= token < vocab:
                raise UsageError(f"token {token} is outside the vocabulary of {vocab}")
        check_ids(self.model.bundle.manifest.diffusion, found)
        return found
