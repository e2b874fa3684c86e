"""Ctrl-C and SIGTERM end a command, even while its main thread is inside a call that does not return.

Python runs its signal handlers between two instructions of the main thread: not while a library computes, however long
a hostile graph lets it. A thread therefore watches whether the handler ran, and ends the process if it did not.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread, current_thread, main_thread
from types import FrameType
from typing import NoReturn

INTERRUPTED, TERMINATED = 130, 143
# Seconds until a handler must have run.
_PATIENCE = 1.5
_CODES = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED}


@contextmanager
def ending_by_signals() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt and SIGTERM SystemExit meanwhile, so that partial files are removed; a main
    thread that comes to neither is ended. A SIGINT that is ignored stays so."""
    if current_thread() is not main_thread():
        yield
        return
    ran = Event()
    here, there = socket.socketpair()
    there.setblocking(False)
    before = {number: signal.getsignal(number) for number in _CODES}
    if before[signal.SIGINT] is signal.default_int_handler:
        signal.signal(signal.SIGINT, _marking(ran, signal.default_int_handler))
    signal.signal(signal.SIGTERM, _marking(ran, lambda *_: sys.exit(TERMINATED)))
    ours = {number: signal.getsignal(number) for number in _CODES}
    woken = signal.set_wakeup_fd(there.fileno(), warn_on_full_buffer=False)
    Thread(target=_watch, args=(here, ran, ours), name="edgedec-signals", daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(woken)
        for number, handler in before.items():
            signal.signal(number, handler)
        there.close()  # ends the thread


def _marking(ran: Event, handler: Callable[[int, FrameType | None], object]) -> Callable[[int, FrameType | None], None]:
    def marked(number: int, frame: FrameType | None) -> None:
        ran.set()
        handler(number, frame)

    return marked


def _watch(here: socket.socket, ran: Event, ours: dict[signal.Signals, object]) -> None:
    """End the process if a signal came and its handler, which is still ours, did not run."""
    with here, suppress(OSError):
        while number := here.recv(1):
            if ran.wait(_PATIENCE):
                ran.clear()
                _forget(here)
            elif number[0] in _CODES and signal.getsignal(number[0]) is ours[signal.Signals(number[0])]:
                _end(_CODES[signal.Signals(number[0])])


def _forget(here: socket.socket) -> None:
    """Drop the signals that one run of the handler has answered."""
    here.setblocking(False)
    with suppress(BlockingIOError):
        here.recv(4096)
    here.setblocking(True)


def _end(code: int) -> NoReturn:
    """End at once: nothing is flushed or removed, as by SIGKILL."""
    os._exit(code)
