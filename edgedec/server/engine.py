"""One thread that owns the batch and a pool of sessions; requests come from the event loop, events go back to it.

A waiting request takes the free slot whose text shares the longest beginning with its own, so that a conversation
finds its cache again. Requests wait in the order they came, for a slot and for room in the caches; more than may wait
are refused at once. Caches of texts that ended are kept while there is room, and the longest unused go first.
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

from edgedec.cache.prefixes import common
from edgedec.decoding.batching import Batch
from edgedec.decoding.loop import Stats
from edgedec.drafters import Tables
from edgedec.errors import UsageError
from edgedec.server.plans import Plan
from edgedec.server.problems import Problem
from edgedec.server.tickets import End, Event, Reading, Run, Ticket, Writing

if TYPE_CHECKING:
    from edgedec.model import Model
    from edgedec.session import Session

log = logging.getLogger("edgedec.server")
_LEAST = 256  # tokens that a cache has room for from the beginning


@dataclass(frozen=True)
class Limits:
    """slots: texts at a time, of `context` tokens each; tokens: what all caches together may hold, 0: as many as the
    slots; queue: how many more may wait; seconds: for a request."""

    slots: int = 4
    context: int = 1024
    queue: int = 64
    seconds: float = 600.0
    spec: str = "auto"
    tokens: int = 0

    def __post_init__(self) -> None:
        if 0 < self.tokens < self.context:
            raise UsageError(
                f"{self.tokens} tokens for all caches: a text of {self.context} would never fit; allow more, or take "
                "a smaller context"
            )

    @property
    def room(self) -> int:
        """Tokens in all caches."""
        return self.tokens or self.slots * self.context


@dataclass(eq=False)
class Slot:
    """A session, made when it is first needed, and who uses it. `kept`: the most that its cache came to hold."""

    session: Session
    ticket: Ticket | None = None
    used: float = field(default_factory=monotonic)
    kept: int = 0

    @property
    def need(self) -> int:
        """What the text in it may come to hold."""
        job = None if self.ticket is None else self.ticket.job
        return 0 if job is None else job.need

    @property
    def held(self) -> int:
        """Tokens in its caches, now or later: a text that is read has one beside the session's."""
        own = max(self.kept, min(_LEAST, self.session.capacity))
        return own + self.need if isinstance(self.ticket, Reading) else max(own, self.need)


class Engine:
    """`start` it in a running event loop, `submit` from there; `drain` refuses what is new, `close` ends it."""

    def __init__(self, model: Model, limits: Limits, done: Callable[[Ticket, End], None] = lambda t, e: None) -> None:
        """done: told in the engine's thread of every ticket's end."""
        self.model, self.limits, self._done = model, limits, done
        self._batch = self._new_batch()
        self._slots: list[Slot] = []
        self._tables: Tables = {}
        self._waiting: deque[Ticket] = deque()
        self._changed = threading.Condition()
        self._posts: list[tuple[Run, Event]] = []
        self._draining = self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._work, name="edgedec-engine", daemon=True)

    @property
    def running(self) -> int:
        return sum(ticket.began > 0 for ticket in self._seated())

    @property
    def waiting(self) -> int:
        """For a slot, or for room in the caches."""
        return len(self._waiting) + sum(not ticket.began for ticket in self._seated())

    @property
    def held(self) -> int:
        """Tokens that the caches hold or may come to hold."""
        return sum(slot.held for slot in list(self._slots))

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
            for ticket in [*self._waiting, *self._seated()]:
                if not ticket.began:
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
            if len(self._seated()) + len(self._waiting) + len(tickets) > room:
                raise Problem(429, "too many requests wait already; try again later", code="queue_full", wait=1)
            self._waiting.extend(tickets)
            self._changed.notify()
        return run

    def _cancel(self, run: Run) -> None:
        """From any thread."""
        with self._changed:
            for ticket in [*self._waiting, *self._seated()]:
                if ticket.run is run and not ticket.finish:
                    ticket.finish = "cancelled"
            self._changed.notify()

    def _seated(self) -> list[Ticket]:
        """Who has a slot. From any thread."""
        return [ticket for slot in list(self._slots) if (ticket := slot.ticket) is not None]

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
        for ticket in [*self._waiting, *self._seated()]:
            ticket.finish = "closing"
        self._end_late()
        self._flush()

    def _wait(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._waiting or self._seated())
            return not self._closed

    def _end_late(self) -> None:
        """Those who were cancelled, and those who took too long."""
        now = monotonic()
        for ticket in self._seated():
            if ticket.job is not None and (ticket.finish or now > ticket.deadline):
                ticket.finish = ticket.finish or "timeout"
                self._batch.cancel(ticket.job)
        with self._changed:
            late = [ticket for ticket in self._waiting if ticket.finish or now > ticket.deadline]
            for ticket in late:
                self._waiting.remove(ticket)
        for ticket in late:
            ticket.finish = ticket.finish or "timeout"
            ticket.end()

    def _seat(self) -> None:
        """Give free slots to those who wait. One of them may wait in the batch, until there is room for it."""
        self._make_room()
        while self._waiting and len(self._seated()) < self.limits.slots:
            if self.held > self.limits.room:
                return
            slot = self._slot_for(self._waiting[0].ids)
            with self._changed:
                slot.ticket = ticket = self._waiting.popleft()
            try:
                ticket.start(slot.session, self._batch)
            except Exception as error:
                log.exception("a text could not be begun")
                self._lose(ticket, error)
            self._make_room()

    def _make_room(self) -> None:
        """Caches that nobody uses go, the longest unused first, until all fit."""
        held = self.held
        for slot in sorted((slot for slot in self._slots if slot.ticket is None), key=lambda slot: slot.used):
            if held <= self.limits.room:
                return
            held -= slot.held
            self._slots.remove(slot)

    def _slot_for(self, ids: Sequence[int]) -> Slot:
        """The free one that shares most. A new one while there may be more, if that would lose most of its text."""
        free = [(common(slot.session.ids, ids), slot) for slot in self._slots if slot.ticket is None]
        same, best = max(free, key=lambda pair: (pair[0], -pair[1].used), default=(0, None))
        if best is not None and (2 * same > len(best.session.ids) or len(self._slots) == self.limits.slots):
            return best
        limits = self.limits
        made = Slot(self.model.session(context=limits.context, spec=limits.spec, tables=self._tables))
        self._slots.append(made)
        return made

    def _post(self, ticket: Ticket, event: Event) -> None:
        self._posts.append((ticket.run, event))
        if isinstance(event, End):
            for slot in self._slots:
                if slot.ticket is ticket:
                    slot.kept = max(slot.kept, len(slot.session.ids))
                    slot.ticket, slot.used = None, monotonic()
            self._make_room()
            self._done(ticket, event)

    def _fail(self, error: Exception) -> None:
        """Nothing of what ran can be trusted: new sessions, a new batch."""
        slots, self._slots, self._tables = self._slots, [], {}
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
        return Batch(self.model.runtime, tokens=self.limits.room, most=self.limits.slots)


def _deliver(posts: Sequence[tuple[Run, Event]]) -> None:
    for run, event in posts:
        run.post(event)
