"""One thread that owns the batch and a pool of sessions; requests come from the event loop, events go back to it.

A waiting request takes the free slot whose text shares the longest beginning with its own, so that a conversation
finds its cache again. Requests wait in the order they came; more than may wait are refused at once.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING

from edgedec.batching import Batch
from edgedec.decode import Stats
from edgedec.prefixes import common
from edgedec.server.plans import Plan
from edgedec.server.problems import Problem
from edgedec.server.tickets import End, Event, Reading, Run, Ticket, Writing

if TYPE_CHECKING:
    from edgedec.model import Model
    from edgedec.session import Session

log = logging.getLogger("edgedec.server")


@dataclass(frozen=True)
class Limits:
    """slots: texts at a time, of `context` tokens each; queue: how many more may wait; seconds: for a request."""

    slots: int = 4
    context: int = 1024
    queue: int = 64
    seconds: float = 600.0
    spec: str = "auto"


@dataclass(eq=False)
class Slot:
    """A session, made when it is first needed, and who uses it."""

    session: Session
    ticket: Ticket | None = None
    used: float = field(default_factory=monotonic)


class Engine:
    """`start` it in a running event loop, `submit` from there; `drain` refuses what is new, `close` ends it."""

    def __init__(self, model: Model, limits: Limits, done: Callable[[Ticket, End], None] = lambda t, e: None) -> None:
        """done: told in the engine's thread of every ticket's end."""
        self.model, self.limits, self._done = model, limits, done
        self._batch = self._new_batch()
        self._slots: list[Slot] = []
        self._waiting: deque[Ticket] = deque()
        self._changed = threading.Condition()
        self._posts: list[tuple[Run, Event]] = []
        self._draining = self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._work, name="edgedec-engine", daemon=True)

    @property
    def running(self) -> int:
        return sum(slot.ticket is not None for slot in self._slots)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def draining(self) -> bool:
        return self._draining

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def write(self, plans: Sequence[Plan]) -> Run:
        """All of a request's texts, or Problem 429 or 503 for all of them."""
        run, deadline = Run(len(plans), self._cancel), monotonic() + self.limits.seconds
        return self._submit(
            run, [Writing(run, p.index, p.ids, deadline, self._post, plan=p, model=self.model) for p in plans]
        )

    def read(self, texts: Sequence[tuple[int, ...]]) -> Run:
        """Texts to embed."""
        run, deadline = Run(len(texts), self._cancel), monotonic() + self.limits.seconds
        return self._submit(
            run, [Reading(run, i, ids, deadline, self._post, model=self.model) for i, ids in enumerate(texts)]
        )

    def drain(self) -> None:
        """Refuse what is new and what waits; what runs goes on."""
        with self._changed:
            self._draining = True
            for ticket in self._waiting:
                ticket.finish = "closing"
            self._changed.notify()

    def close(self) -> None:
        """End everything."""
        with self._changed:
            self._draining = self._closed = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _submit(self, run: Run, tickets: Sequence[Ticket]) -> Run:
        room = self.limits.slots + self.limits.queue
        if len(tickets) > room:
            raise Problem(400, f"{len(tickets)} texts at once: this server allows {room} at most", "n", "invalid_value")
        with self._changed:
            if self._draining:
                raise Problem(503, "the server is shutting down", code="shutting_down", wait=5)
            if self.running + len(self._waiting) + len(tickets) > room:
                raise Problem(429, "too many requests wait already; try again later", code="queue_full", wait=1)
            self._waiting.extend(tickets)
            self._changed.notify()
        return run

    def _cancel(self, run: Run) -> None:
        """From any thread."""
        with self._changed:
            slots = (slot.ticket for slot in self._slots)
            for ticket in [*self._waiting, *(ticket for ticket in slots if ticket is not None)]:
                if ticket.run is run and not ticket.finish:
                    ticket.finish = "cancelled"
            self._changed.notify()

    # -- the engine's thread

    def _work(self) -> None:
        while self._wait():
            try:
                self._end_late()
                self._seat()
                self._batch.step()
            except Exception as error:
                log.exception("the engine failed; its texts are lost")
                self._fail(error)
            self._flush()
        for ticket in [*self._waiting, *(slot.ticket for slot in self._slots if slot.ticket)]:
            ticket.finish = "closing"
        self._end_late()
        self._flush()

    def _wait(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._waiting or self.running)
            return not self._closed

    def _end_late(self) -> None:
        """Those who were cancelled, and those who took too long."""
        now = monotonic()
        for slot in self._slots:
            ticket = slot.ticket
            if ticket is not None and ticket.job is not None and (ticket.finish or now > ticket.deadline):
                ticket.finish = ticket.finish or "timeout"
                self._batch.cancel(ticket.job)
        with self._changed:
            late = [ticket for ticket in self._waiting if ticket.finish or now > ticket.deadline]
            for ticket in late:
                self._waiting.remove(ticket)
        for ticket in late:
            ticket.finish = ticket.finish or "timeout"
            ticket.began = ticket.first = ticket.last = now
            ticket.end()

    def _seat(self) -> None:
        """Give free slots to those who wait."""
        while self._waiting and self.running < self.limits.slots:
            slot = self._slot_for(self._waiting[0].ids)
            with self._changed:
                slot.ticket = ticket = self._waiting.popleft()
            try:
                ticket.start(slot.session, self._batch)
            except Exception as error:
                log.exception("a text could not be begun")
                self._lose(ticket, error)

    def _slot_for(self, ids: Sequence[int]) -> Slot:
        """The free one that shares most. A new one while there may be more, if that would lose most of its text."""
        free = [(common(slot.session.ids, ids), slot) for slot in self._slots if slot.ticket is None]
        same, best = max(free, key=lambda pair: (pair[0], -pair[1].used), default=(0, None))
        if best is not None and (2 * same > len(best.session.ids) or len(self._slots) == self.limits.slots):
            return best
        made = Slot(self.model.session(context=self.limits.context, spec=self.limits.spec))
        self._slots.append(made)
        return made

    def _post(self, ticket: Ticket, event: Event) -> None:
        self._posts.append((ticket.run, event))
        if isinstance(event, End):
            for slot in self._slots:
                if slot.ticket is ticket:
                    slot.ticket, slot.used = None, monotonic()
            self._done(ticket, event)

    def _fail(self, error: Exception) -> None:
        """Nothing of what ran can be trusted: new sessions, a new batch."""
        slots, self._slots = self._slots, []
        self._batch = self._new_batch()
        for slot in slots:
            if slot.ticket is not None:
                self._lose(slot.ticket, error)

    def _lose(self, ticket: Ticket, error: Exception) -> None:
        self._slots = [slot for slot in self._slots if slot.ticket is not ticket]
        end = End(ticket.index, "failed", Stats(), type(error).__name__, True)
        self._post(ticket, end)

    def _flush(self) -> None:
        """One wake-up of the event loop for all that a step said."""
        posts, self._posts = self._posts, []
        if posts and self._loop is not None:
            with suppress(RuntimeError):  # the loop is gone, and so is who listened
                self._loop.call_soon_threadsafe(_deliver, posts)

    def _new_batch(self) -> Batch:
        slots = self.limits.slots
        return Batch(self.model.runtime, tokens=slots * self.limits.context, most=slots)


def _deliver(posts: Sequence[tuple[Run, Event]]) -> None:
    for run, event in posts:
        run.post(event)
