"""One thread that owns the batch; requests come from the event loop, events go back to it.

Every text is a session of its own, submitted to one `Batch`, which admits at most `slots` texts, whose caches hold at
most `room` tokens, in fair shares (`fairness`). A text with the prefix of an earlier one continues from its cache.
Requests above the queue's limit are rejected at once. After the loss of the device all requests are rejected.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from edgedec.cache.offload import Offload
from edgedec.decoding.messages import Stats
from edgedec.decoding.scheduler.batch import Batch, Job
from edgedec.decoding.sharing import SharedPrefixes
from edgedec.drafters import Tables
from edgedec.errors import UsageError
from edgedec.runtime import Adapter
from edgedec.runtime.registry import available_cores, device_lost, device_said
from edgedec.server.completions import Completion
from edgedec.server.errors import APIError
from edgedec.server.fairness import Owner, has_place, seconds_until, starves, turns
from edgedec.server.limits import ServerLimits
from edgedec.server.requests import EmbeddingRequest, EndEvent, EngineRequest, Event, GenerationRequest, Submission

if TYPE_CHECKING:
    from edgedec.model import Model
    from edgedec.session import Session

log = logging.getLogger("edgedec.server")
# Seconds that the engine waits for the event loop, which may be busy with something else; the weight of a text in the
# mean time that texts take.
_LONGEST_WAIT, _PACE = 0.02, 0.1
# The seconds by which prompts may prolong a call of other texts, besides its own time.
_PAUSE = 0.05


class EngineThread:
    """The engine's thread. `start` it in a running event loop, `generate` and `embed` from there; `drain` rejects new
    requests, `close` ends it."""

    def __init__(
        self, model: Model, limits: ServerLimits, on_end: Callable[[EndEvent], None] = lambda end: None
    ) -> None:
        """on_end: called in the engine's thread at the end of every text."""
        self.model, self.limits, self._on_end = model, limits, on_end
        folder, size = limits.offload
        self.offload = Offload(folder, size) if size else None
        self._tables: Tables = {}
        # Unused, but keeps shared objects such as draft heads open between requests.
        self._kept: Session | None = None
        self._new: deque[EngineRequest] = deque()
        self._requests: list[EngineRequest] = []
        self._batch = self._new_batch()
        self._changed = threading.Condition()
        self._posts: list[tuple[Submission, Event]] = []
        # A forward on all cores loses less by beginning late than by waiting for a thread that lost its core.
        self._waits, self._written = model.runtime.capabilities.threads >= available_cores(), threading.Event()
        self._held, self._counts, self._each = 0, (0, 0), 0.0
        self._draining = self._closed = False
        # The device's message when it was lost, in one line; "" while it works.
        self.lost = ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._work, name="edgedec-engine", daemon=True)

    @property
    def running(self) -> int:
        return sum(request.started > 0 for request in self._requests.copy())

    @property
    def waiting(self) -> int:
        """The number of texts that wait for a slot, or for room in the caches."""
        return len(self._requests) - self.running

    @property
    def idle(self) -> bool:
        """Whether no text runs or waits."""
        return not self._requests

    @property
    def held(self) -> int:
        """Tokens that the caches hold or may come to hold, those of ended texts included."""
        return self._held

    @property
    def draining(self) -> bool:
        return self._draining

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def generate(self, completions: Sequence[Completion], client: str = "") -> Submission:
        """All texts of an HTTP request, or APIError 429 or 503 for all of them."""
        run, deadline = Submission(len(completions), self._cancel, client), monotonic() + self.limits.seconds
        requests = [
            GenerationRequest(run, i, completion.ids, deadline, self._post, completion=completion)
            for i, completion in enumerate(completions)
        ]
        return self._submit(run, requests)

    def embed(self, texts: Sequence[tuple[int, ...]], adapter: Adapter | None = None, client: str = "") -> Submission:
        """Texts to embed."""
        run, deadline = Submission(len(texts), self._cancel, client), monotonic() + self.limits.seconds
        requests = [EmbeddingRequest(run, i, ids, deadline, self._post, adapter=adapter) for i, ids in enumerate(texts)]
        return self._submit(run, requests)

    def drain(self) -> None:
        """Reject new and waiting requests; running ones continue."""
        with self._changed:
            self._draining = True
            for request in self._requests:
                if not request.started:
                    request.finish = "closing"
            self._changed.notify()

    def close(self) -> None:
        """End everything."""
        with self._changed:
            self._draining = self._closed = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()
        if self.offload is not None:
            self.offload.close()

    def _submit(self, run: Submission, requests: Sequence[EngineRequest]) -> Submission:
        most = self.limits.slots + self.limits.queue
        if len(requests) > most:
            message = f"{len(requests)} texts at once: this server allows {most} at most"
            raise APIError(400, message, "n", "invalid_value")
        with self._changed:
            if self.lost:
                raise APIError(503, f"the device is lost: {self.lost}", code="device_lost", wait=5)
            if self._draining:
                raise APIError(503, "the server is shutting down", code="shutting_down", wait=5)
            if not has_place(self._requests, Owner(run.client, run), len(requests), most):
                wait = self._seconds_until(len(self._requests) + len(requests) - most)
                raise APIError(429, "too many requests wait already; try again later", code="queue_full", wait=wait)
            self._new.extend(requests)
            self._requests.extend(requests)
            self._counts = (0, 0)
            self._changed.notify()
        return run

    def _cancel(self, run: Submission) -> None:
        """Cancel a run; callable from any thread."""
        with self._changed:
            for request in self._requests:
                if request.run is run and not request.finish:
                    request.finish = "cancelled"
            self._changed.notify()

    def _seconds_until(self, places: int) -> int:
        """Seconds until so many texts have ended, by their present speed; not more than a request may take."""
        found = (request.progress() for request in self._requests if request.started)
        running = [progress for progress in found if progress is not None]
        return min(seconds_until(places, running, self._each), max(int(self.limits.seconds), 1))

    # -- the engine's thread

    def _work(self) -> None:
        while self._wait():
            try:
                self._add_new()
                self._end_overdue()
                self._batch.step()
            except Exception as error:
                log.exception("the engine failed; its texts are lost")
                self._note_lost(error)
                self._fail(error)
            self._flush()
        for request in self._requests:
            request.finish = "closing"
        self._end_overdue()
        self._flush()

    def _wait(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._requests)
            return not self._closed

    def _add_new(self) -> None:
        """Submit new requests to the batch, which admits them when there is room."""
        while self._new:
            request = self._new.popleft()
            try:
                if not request.finish:
                    request.submit(self.model, self._new_session, self._batch)
            except UsageError as error:
                self._lose(request, str(error), fault=False)
            except Exception as error:
                log.exception("a text could not be started")
                self._note_lost(error)
                self._lose(request, _told(error))
                if self.lost:
                    self._fail(error)

    def _end_overdue(self) -> None:
        """End cancelled requests, and requests past their deadline."""
        now = monotonic()
        for request in self._requests.copy():
            if not request.finish and now > request.deadline:
                request.finish = "timeout"
            if request.finish and request.job is not None:
                self._batch.cancel(request.job)
            elif request.finish:
                request.end()

    def _post(self, request: EngineRequest, event: Event) -> None:
        self._posts.append((request.run, event))
        if isinstance(event, EndEvent):
            with self._changed:
                self._requests.remove(request)
                taken = sum(event.seconds[1:])
                self._each += (taken - self._each) * (_PACE if self._each else 1.0)
            self._on_end(event)

    def _note_lost(self, error: Exception) -> None:
        """Note the loss of the device: some errors of a GPU persist for the rest of the process, and all later calls
        fail."""
        if device_said(error) is not None and not self.lost and device_lost(self.model.runtime):
            with self._changed:
                self.lost = _told(error)

    def _fail(self, error: Exception) -> None:
        """End all texts with an error, because their state is unreliable."""
        if not self.lost:  # nothing can be freed there
            if self.offload is not None:
                self.offload.clear()
            self._tables, self._kept, self._batch = {}, None, self._new_batch()
        for request in self._requests.copy():
            self._lose(request, _told(error))

    def _lose(self, request: EngineRequest, why: str, fault: bool = True) -> None:
        """fault: the server's, and not of what the request asks for."""
        request.job, request.finish = None, "failed"
        self._post(request, EndEvent(request.index, "failed", Stats(), why, fault))

    def _flush(self) -> None:
        """Wake the event loop once for all events of a step; wait until it has written them if all cores compute."""
        counts = (len(self._requests), self.running)
        if counts != self._counts:  # only starts and ends change it
            self._counts, self._held = counts, self._batch.held()
            self._batch.extra = int(starves(self._requests.copy()))
            # The caches may grow by one text, unless their size is given, or memory is short.
            self._batch.spare = 0 if self.limits.tokens else self._batch.extra * self.limits.each
        posts, self._posts = self._posts, []
        if posts and self._loop is not None:
            self._written.clear()
            with suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(_deliver, posts, self._written)
                if self._waits:
                    self._written.wait(_LONGEST_WAIT)

    def _new_batch(self) -> Batch:
        prefixes = SharedPrefixes(self.model.runtime.capabilities, self.offload)
        order, room = partial(_fairly, self._requests), self.limits.room
        runtime, slots = self.model.runtime, self.limits.slots
        return Batch(runtime, tokens=room, most=slots, prefixes=prefixes, order=order, pause=_PAUSE)

    def _new_session(self, adapter: Adapter | None = None, diffusion: str | None = None) -> Session:
        self._kept = self._kept or self._open_session(1)
        return self._open_session(self.limits.context, adapter, diffusion)

    def _open_session(self, context: int, adapter: Adapter | None = None, diffusion: str | None = None) -> Session:
        speculate = self.limits.speculate
        return self.model.session(
            context=context, speculate=speculate, tables=self._tables, adapter=adapter, diffusion=diffusion
        )


def _fairly(requests: Sequence[EngineRequest], waiting: Sequence[Job]) -> Iterator[Job]:
    """The waiting jobs in fair turns; requests: all of the engine."""
    owners = {request.job: request for request in requests if request.job is not None}
    running = [request for request in owners.values() if request.started]
    for request in turns([owners[job] for job in waiting if job in owners], running):
        assert request.job is not None
        yield request.job


def _told(error: Exception) -> str:
    """The message of an error for clients: a device's own message; for other errors, which may contain anything, only
    the type."""
    return device_said(error) or type(error).__name__


def _deliver(posts: Sequence[tuple[Submission, Event]], written: threading.Event) -> None:
    for run, event in posts:
        run.post(event)
    # Called after the tasks that these events have woken, which write what is ready.
    asyncio.get_running_loop().call_soon(written.set)
