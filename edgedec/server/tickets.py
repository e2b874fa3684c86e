"""What a request has in the engine: a ticket for each text. All of this but `Run` runs in the engine's thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgedec.decoding.batching import Batch, Job
from edgedec.decoding.context import Context
from edgedec.decoding.loop import CHUNK, Stats, Steps, Token
from edgedec.runtime import Call, Want
from edgedec.runtime.rows import Rows
from edgedec.server.plans import Plan
from edgedec.text.tokenizer import Detokenizer, StopStrings

if TYPE_CHECKING:
    from edgedec.model import Model
    from edgedec.session import Session


@dataclass(frozen=True)
class Text:
    """Text that became certain, perhaps none, and the token that made it so (None: the rest at the end)."""

    index: int
    text: str
    token: Token | None


@dataclass(frozen=True)
class End:
    """`finish`: eos, stop, length, context, cancelled, timeout, closing, failed; `why` it failed, and whether that
    is the server's fault. `seconds`: waiting, up to the first token, and from there to the last."""

    index: int
    finish: str
    stats: Stats = field(default_factory=Stats)
    why: str = ""
    fault: bool = False
    seconds: tuple[float, float, float] = (0.0, 0.0, 0.0)
    vector: NDArray[np.float32] | None = None


Event = Text | End


class Run:
    """A request's tickets as the event loop sees them: their events, and the way to end them."""

    def __init__(self, count: int, cancel: Callable[[Run], None]) -> None:
        self._left, self._cancel = count, cancel
        self._queue: asyncio.Queue[Event] = asyncio.Queue()

    def post(self, event: Event) -> None:
        self._queue.put_nowait(event)

    def cancel(self) -> None:
        """Ends what still runs; its slots are free at once."""
        if self._left:
            self._cancel(self)

    async def events(self) -> AsyncIterator[list[Event]]:
        """What happened since the last look, until all tickets have ended."""
        while self._left:
            found = [await self._queue.get()]
            while not self._queue.empty():
                found.append(self._queue.get_nowait())
            self._left -= sum(isinstance(event, End) for event in found)
            yield found


@dataclass(eq=False)
class Ticket:
    """A text that waits or runs. `post` takes its events; `finish` is set where it is not the model that ends it.

    It runs from the moment the batch has room for it; before that, with a slot or without, it waits.
    """

    run: Run
    index: int
    ids: tuple[int, ...]
    deadline: float
    post: Callable[[Ticket, Event], None]
    finish: str = ""
    job: Job | None = None
    came: float = field(default_factory=monotonic)
    began: float = 0.0
    first: float = 0.0
    last: float = 0.0

    def start(self, session: Session, batch: Batch) -> None:
        """Into the batch, with a session to write in."""
        raise NotImplementedError

    def end(self) -> None:
        """Told once, when the job is over or will never be."""
        if not self.began:
            self.began = self.first = self.last = monotonic()
            self._close(Stats(), None)
        else:
            self._ended()

    def _ended(self) -> None:
        """What ran is over."""
        raise NotImplementedError

    def _joins(self, job: Job) -> None:
        """The batch takes up its loop when there is room for it."""
        self.job, job.loop = job, self._begins(job.loop)

    def _begins(self, loop: Steps) -> Steps:
        self.began = self.first = self.last = monotonic()
        yield from loop

    def _seconds(self) -> tuple[float, float, float]:
        return self.began - self.came, self.first - self.began, self.last - self.first

    def _close(self, stats: Stats, vector: NDArray[np.float32] | None) -> None:
        error = None if self.job is None else self.job.error
        finish = self.finish or ("failed" if error else stats.finish)
        why = "" if error is None else str(error)
        # It tells this ticket, which holds it: a ring, in which caches would stay until Python looks for rings.
        self.job = None
        self.post(self, End(self.index, finish, stats, why, False, self._seconds(), vector))


@dataclass(eq=False)
class Writing(Ticket):
    """A text to write."""

    plan: Plan | None = None
    model: Model | None = None

    def start(self, session: Session, batch: Batch) -> None:
        assert self.plan is not None
        assert self.model is not None
        plan = self.plan
        self._session = session
        self._text = Detokenizer(self.model.tokenizer, prompt_ids=plan.ids)
        self._stops = StopStrings(plan.stop)
        self._joins(
            session.submit(
                batch,
                plan.ids,
                self._told,
                max_tokens=plan.max_tokens,
                sampling=plan.sampling,
                ignore_eos=plan.ignore_eos,
                logprobs=plan.logprobs,
                constraint=plan.constraint,
            )
        )

    def _told(self, token: Token | None) -> None:
        if token is None:
            self.end()
            return
        self.last = monotonic()
        if self._session.stats.generated == 1:
            self.first = self.last
        text, hit = self._stops.push(self._text.push(token))
        self.post(self, Text(self.index, text, token))
        if hit:
            assert self.job is not None
            self.finish = "stop"
            self.job.end()

    def _ended(self) -> None:
        if not self.finish:
            text, hit = self._stops.push(self._text.flush())
            rest, hit_late = self._stops.flush()
            self.finish = "stop" if hit or hit_late else ""
            if text or rest:
                self.post(self, Text(self.index, text + rest, None))
        self._close(self._session.stats, None)


@dataclass(eq=False)
class Reading(Ticket):
    """A text to embed: the mean of its hidden states behind the last block, to length 1."""

    model: Model | None = None
    total: NDArray[np.float64] | None = None

    def start(self, session: Session, batch: Batch) -> None:
        """The session's own text is left as it is."""
        assert self.model is not None
        context = Context(list(self.ids), len(self.ids), self.model.runtime.new_cache(len(self.ids)))
        self._joins(batch.add(context, self._steps(context), self._told, len(self.ids)))

    def _steps(self, context: Context) -> Steps:
        total, cache = np.zeros(self.model.spec.hidden_size if self.model else 0), context.cache
        while pending := context.pending():
            rows = Rows.chain(pending[:CHUNK], cache.length)
            answer = yield Call(rows, cache, 0, Want(logits=False, hidden=True))
            assert answer.output.hidden is not None
            total += answer.output.hidden.sum(0, dtype=np.float64)
            cache.keep(range(len(rows)))
        self.total = total

    def _told(self, token: Token | None) -> None:
        self.end()

    def _ended(self) -> None:
        stats = Stats(prompt=len(self.ids), finish="eos")
        norm = 0.0 if self.total is None else float(np.linalg.norm(self.total))
        vector = None if self.total is None else (self.total / (norm or 1.0)).astype(np.float32)
        self._close(stats, vector)
