"""Ends what a thread waits for in a worker process, from another thread: its client has left, or its time is over."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from edgedec.errors import LimitExceeded
from edgedec.sandbox.worker import GuestWorker

_STOP: ContextVar[Stop | None] = ContextVar("edgedec-stop", default=None)
_LOOK = 0.02  # seconds between two looks while a turn is awaited


class Stop:
    """`end`, once, from any thread: workers that are `used` under it are ended, and no other is waited for."""

    def __init__(self) -> None:
        self.ended, self._lock = False, threading.Lock()
        self._workers: set[GuestWorker] = set()

    def end(self) -> None:
        with self._lock:
            self.ended = True
            for worker in self._workers:
                worker.interrupt()

    @contextmanager
    def applied(self) -> Iterator[None]:
        """A context in which this thread's calls are stopped."""
        token = _STOP.set(self)
        try:
            yield
        finally:
            _STOP.reset(token)

    @contextmanager
    def _held(self, worker: GuestWorker) -> Iterator[None]:
        with self._lock:
            self._workers.add(worker)
            if self.ended:
                worker.interrupt()
        try:
            yield
        finally:
            with self._lock:
                self._workers.discard(worker)


def stopped() -> bool:
    """Whether this thread's work was given up."""
    found = _STOP.get()
    return found is not None and found.ended


@contextmanager
def used(worker: object) -> Iterator[None]:
    """A context in which a worker is waited for."""
    stop = _STOP.get()
    if stop is None or not isinstance(worker, GuestWorker):
        yield
        return
    with stop._held(worker):
        yield


def wait(event: threading.Event) -> None:
    """Wait for an event; LimitExceeded if the work was given up."""
    while not event.wait(None if _STOP.get() is None else _LOOK):
        _check()


@contextmanager
def turn(places: threading.Semaphore) -> Iterator[bool]:
    """A context with one of some places, and whether it had to wait for it; LimitExceeded if the work was given up."""
    waited = not places.acquire(blocking=False)
    while waited and not places.acquire(timeout=None if _STOP.get() is None else _LOOK):
        _check()
    try:
        _check()
        yield waited
    finally:
        places.release()


def _check() -> None:
    if stopped():
        raise LimitExceeded("was given up")
