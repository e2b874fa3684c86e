"""Requests in the engine: one for each text of an HTTP request. All but `Submission` runs in the engine's thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgedec.decoding.context import Context
from edgedec.decoding.messages import DecodeLoop, Stats, Token
from edgedec.decoding.scheduler.batch import Batch, Job
from edgedec.errors import RuntimeUnavailable
from edgedec.runtime import Adapter, Call, Outputs, Rows
from edgedec.server.completions import Completion
from edgedec.server.fairness import Owner, TextProgress
from edgedec.text.stream import TextStream

if TYPE_CHECKING:
    from edgedec.model import Model
    from edgedec.session import Session


@dataclass(frozen=True)
class TextEvent:
    """Text that is final, possibly empty, and the token that completed it (None: the rest at the end)."""

    index: int
    text: str
    token: Token | None


@dataclass(frozen=True)
class PromptEvent:
    """The prompt's tokens, each but the first with its log-probability."""

    index: int
    tokens: tuple[Token, ...]


@dataclass(frozen=True)
class EndEvent:
    """`finish`: eos, stop, length, context, cancelled, timeout, closing, failed; `why`: the reason of a failure; and
    whether the server caused it. `seconds`: waiting, up to the first token, and from there to the last.
    `drafting`: the report of its session."""

    index: int
    finish: str
    stats: Stats = field(default_factory=Stats)
    why: str = ""
    fault: bool = False
    seconds: tuple[float, float, float] = (0.0, 0.0, 0.0)
    vector: NDArray[np.float32] | None = None
    drafting: Mapping[str, Any] = field(default_factory=dict)


Event = TextEvent | PromptEvent | EndEvent
# The arguments: an adapter, and how a diffusion model decodes.
NewSession = Callable[[Adapter | None, str | None], "Session"]


class Submission:
    """The texts of one HTTP request, for the event loop: their events, and cancellation. `client`: whose it is."""

    def __init__(self, count: int, cancel: Callable[[Submission], None], client: str = "") -> None:
        self._left, self._cancel, self.client = count, cancel, client
        self._queue: asyncio.Queue[Event] = asyncio.Queue()

    def post(self, event: Event) -> None:
        self._queue.put_nowait(event)

    def cancel(self) -> None:
        """End what still runs; its room is free at once."""
        if self._left:
            self._cancel(self)

    async def events(self) -> AsyncIterator[list[Event]]:
        """The events since the last ones, until all texts have ended."""
        while self._left:
            found = [await self._queue.get()]
            while not self._queue.empty():
                found.append(self._queue.get_nowait())
            self._left -= sum(isinstance(event, EndEvent) for event in found)
            yield found


@dataclass(eq=False)
class EngineRequest:
    """A text that waits or runs. `post` receives its events; `finish` is set if something other than the model ends it.

    It waits until the batch has room for it, and runs from then on.
    """

    run: Submission
    index: int
    ids: tuple[int, ...]
    deadline: float
    post: Callable[[EngineRequest, Event], None]
    finish: str = ""
    job: Job | None = None
    came: float = field(default_factory=monotonic)
    started: float = 0.0
    first: float = 0.0
    last: float = 0.0

    @property
    def owner(self) -> Owner:
        """For its share of slots and places."""
        return Owner(self.run.client, self.run)

    def progress(self) -> TextProgress | None:
        """How far a running text is, if that is known."""
        return None

    def submit(self, model: Model, new_session: NewSession, batch: Batch) -> None:
        """Add it to the batch."""
        raise NotImplementedError

    def end(self) -> None:
        """Post the end; called once, when the job is over or was never submitted."""
        if not self.started:
            self.on_start()
            self._close(Stats())
        else:
            self._ended()

    def on_start(self) -> None:
        """Note that the batch has admitted it."""
        self.started = self.first = self.last = monotonic()

    def _ended(self) -> None:
        """Post the rest of an ended text, and its end."""
        raise NotImplementedError

    def _close(
        self, stats: Stats, vector: NDArray[np.float32] | None = None, drafting: Mapping[str, Any] | None = None
    ) -> None:
        error = None if self.job is None else self.job.error
        finish = self.finish or ("failed" if error else stats.finish)
        why = "" if error is None else str(error)
        # Breaks a reference cycle, so that the cache is freed at once.
        self.job = None
        seconds = (self.started - self.came, self.first - self.started, self.last - self.first)
        short = error is not None and isinstance(error.__cause__, MemoryError)
        self.post(self, EndEvent(self.index, finish, stats, why, short, seconds, vector, drafting or {}))


@dataclass(eq=False)
class GenerationRequest(EngineRequest):
    """A text to generate."""

    completion: Completion | None = None

    def submit(self, model: Model, new_session: NewSession, batch: Batch) -> None:
        assert self.completion is not None
        config, scores = self.completion.config, self._on_scores if self.completion.scores else None
        self._session = new_session(self.completion.adapter, self.completion.diffusion)
        self._text = TextStream(model.tokenizer, config.stop, self.ids)
        self.job = self._session.submit(batch, self.ids, self._on_token, config, self.on_start, scores)
        self.job.owner = self.owner

    def progress(self) -> TextProgress | None:
        assert self.completion is not None
        most = self.completion.config.max_tokens
        if most is None or self.job is None:  # one that ended in the queue has started, too, but was never submitted
            return None
        return TextProgress(monotonic() - self.started, self._session.stats.generated, most)

    def _on_scores(self, tokens: list[Token]) -> None:
        self.post(self, PromptEvent(self.index, tuple(tokens)))

    def _on_token(self, token: Token | None) -> None:
        if token is None:
            self.end()
            return
        self.last = monotonic()
        if self._session.stats.generated == 1:
            self.first = self.last
        text, stopped = self._text.push(token)
        self.post(self, TextEvent(self.index, text, token))
        if stopped and self.job is not None:
            self.finish = "stop"
            self.job.end()

    def _ended(self) -> None:
        if not self.finish:
            text, stopped = self._text.flush()
            self.finish = "stop" if stopped else ""
            if text:
                self.post(self, TextEvent(self.index, text, None))
        self._close(self._session.stats, drafting=self._session.report())


@dataclass(eq=False)
class EmbeddingRequest(EngineRequest):
    """A text to embed: the mean of its hidden states after the last block, scaled to length 1."""

    adapter: Adapter | None = None
    total: NDArray[np.float64] | None = None

    def submit(self, model: Model, new_session: NewSession, batch: Batch) -> None:
        cache = model.runtime.new_cache(len(self.ids))
        context = Context(list(self.ids), len(self.ids), cache, adapter=self.adapter)
        loop = self._read(model, context)
        self.job = batch.add(context, loop, self._on_token, len(self.ids), on_start=self.on_start)
        self.job.owner = self.owner

    def _read(self, model: Model, context: Context) -> DecodeLoop:
        """Sum the hidden states of the text, read in chunks."""
        if not model.runtime.capabilities.hidden:
            raise RuntimeUnavailable(f"the engine {model.runtime.name} gives no hidden states to embed by")
        last, chunk = model.spec.n_blocks - 1, model.runtime.capabilities.prefill_chunk
        total, cache = np.zeros(model.spec.hidden_size), context.cache
        while pending := context.pending():
            rows = Rows.chain(pending[: context.chunk(chunk)], cache.length)
            completed = yield Call(rows, cache, outputs=Outputs(hidden=(last,)), adapter=self.adapter)
            for state in completed.result.hidden[last]:  # in the same order whatever the chunks
                total += state
            cache.commit(range(len(rows)))
        self.total = total

    def _on_token(self, token: Token | None) -> None:
        self.end()

    def _ended(self) -> None:
        stats = Stats(prompt=len(self.ids), finish="eos")
        if self.total is None:
            self._close(stats)
            return
        norm = float(np.linalg.norm(self.total)) or 1.0
        self._close(stats, (self.total / norm).astype(np.float32))
