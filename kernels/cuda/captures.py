"""Streams of this process that are recorded, of whichever model: what is freed meanwhile is freed after that.

A garbage collection may come while launches are recorded, and find the memory of a model that nobody uses any more; the
driver would refuse to free it, and to go on recording.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock

_lock = RLock()  # a collection may come in the middle of any of this too
_running = 0
_freed: list[Callable[[], None]] = []


def begin() -> None:
    """A stream is about to be recorded."""
    global _running
    with _lock:
        _running += 1


def defer(free: Callable[[], None]) -> bool:
    """Is something recorded, so that this is called later?"""
    with _lock:
        if _running:
            _freed.append(free)
        return _running > 0


def end() -> None:
    """It was recorded; if nothing else is, what waits is freed."""
    global _running
    with _lock:
        _running -= 1
        waiting = [] if _running else _freed[:]
        del _freed[: len(waiting)]
    for free in waiting:
        free()
