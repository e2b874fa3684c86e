"""Tracks stream recordings of this process, of any model: frees during a recording are deferred to its end.

A garbage collection during a recording may free the memory of an unused model; the driver would refuse that and abort
the recording.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock

_lock = RLock()  # reentrant: a garbage collection may run inside these functions
_running = 0
_freed: list[Callable[[], None]] = []


def begin() -> None:
    """Note the start of a recording."""
    global _running
    with _lock:
        _running += 1


def defer(free: Callable[[], None]) -> bool:
    """Defer a call if a recording is active; returns whether it was deferred."""
    with _lock:
        if _running:
            _freed.append(free)
        return _running > 0


def end() -> None:
    """Note the end of a recording; after the last one, run the deferred calls."""
    global _running
    with _lock:
        _running -= 1
        waiting = [] if _running else _freed[:]
        del _freed[: len(waiting)]
    for free in waiting:
        free()
