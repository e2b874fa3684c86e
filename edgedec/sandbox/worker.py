"""The client side of a worker process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import clock_gettime, monotonic
from typing import Any, NamedTuple

from edgedec.errors import LimitExceeded
from edgedec.sandbox.channel import Channel
from edgedec.sandbox.limits import GuestLimits

# Priorities of a worker, by the seconds of processor time that a request has taken: most take a tenth of the first.
# Those of wall time say nothing where other programs have the processor, and the lowest one is then never served.
LOWEST = 19
_PRIORITIES = (0.02, 10), (0.2, LOWEST)
_LOOK = 0.02  # seconds between two looks at it


def processor_time(pid: int) -> float:
    """Seconds of processor time of a process; of wall time where they are not known."""
    try:
        return clock_gettime(~pid << 3 | 2) if sys.platform == "linux" else monotonic()  # the number of its clock
    except OSError:
        return monotonic()


class Reply(NamedTuple):
    """A guest's reply; `error`: its message in one line if it rejected the request."""

    values: dict[str, Any]
    blob: bytes
    error: str = ""


class GuestWorker:
    """A process that serves one guest's requests, one at a time. Not for two threads at once."""

    def __init__(self, channel: Channel, limits: GuestLimits, end: Callable[[bool], int | None], pid: int = 0) -> None:
        """end: kills the process and returns how it ended, if it may wait for that. pid: its number, if its priority
        may be lowered."""
        self._channel, self.limits, self._end, self._pid = channel, limits, end, pid
        self._alive, self._interrupted = True, False
        self._waiting = 0
        self._since, self._priority = 0.0, 0

    @property
    def alive(self) -> bool:
        return self._alive

    def call(self, blob: bytes = b"", **message: Any) -> Reply:
        """The reply to one request; LimitExceeded if the worker was killed."""
        self.send(blob, **message)
        return self.receive()

    def send(self, blob: bytes = b"", **message: Any) -> None:
        """Send a request without waiting; its reply is the next that `receive` returns. `seconds`: a shorter time
        limit."""
        if not self._alive:
            raise LimitExceeded("its worker process has ended")
        try:
            self._channel.send({"seconds": self.limits.seconds, **message}, blob)
        except EOFError:
            raise self._gone(None) from None
        self._since = self._since if self._waiting else processor_time(self._pid)
        self._waiting += 1

    def ready(self, seconds: float = 0.0) -> bool:
        """Whether the reply arrives within `seconds`; True if no reply is awaited."""
        if not self._alive or not self._waiting or self._channel.ready(seconds):
            return True
        self._lower()
        return False

    def receive(self) -> Reply:
        if not self._alive:
            raise LimitExceeded("its worker process has ended")
        try:
            end = monotonic() + self.limits.patience
            while self._yields and not self._channel.ready(_LOOK) and monotonic() < end:
                self._lower()
            values, blob = self._channel.receive(max(end - monotonic(), _LOOK))
        except (TimeoutError, EOFError, ValueError) as error:
            raise self._gone(error) from None
        self._waiting -= 1
        self._since = processor_time(self._pid)
        if values.get("memory"):
            self.close()
            raise self.limits.exhausted()
        return Reply(values, blob, str(values.pop("error", "")))

    def interrupt(self) -> None:
        """Give up the request that another thread waits for: `receive` ends the process, and raises LimitExceeded."""
        self._interrupted = True
        self._channel.interrupt()

    def lower(self, priority: int) -> None:
        """Lower the priority of all its requests, so that generation has the processor."""
        if self._pid and priority > self._priority and hasattr(os, "setpriority"):
            self._priority = priority
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, self._pid, priority)
                if priority == LOWEST and hasattr(os, "SCHED_IDLE"):  # who wakes up need not wait for its turn to end
                    os.sched_setscheduler(self._pid, os.SCHED_IDLE, os.sched_param(0))

    def size(self) -> int:
        """MiB of memory that the process shares with no other, 0 if that is not known."""
        try:
            lines = Path(f"/proc/{self._pid}/smaps_rollup").read_text("ascii").splitlines() if self._pid else []
        except OSError:
            return 0
        return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) >> 10

    def close(self) -> None:
        """End the process."""
        if self._alive:
            self._alive = False
            self._channel.close()
            self._end(False)

    def __del__(self) -> None:
        # It ends by itself, and its host collects it: a finalizer may run in any thread, which must not wait.
        if getattr(self, "_alive", False):
            self._channel.close()

    @property
    def _yields(self) -> bool:
        """Whether a long request may have its priority lowered further."""
        return self.limits.yields and self._pid > 0 and self._priority < LOWEST

    def _lower(self) -> None:
        """Lower the priority of a long request, if its limits say so."""
        if self._yields:
            taken = processor_time(self._pid) - self._since
            self.lower(max((found for seconds, found in _PRIORITIES if taken >= seconds), default=0))

    def _gone(self, error: Exception | None) -> LimitExceeded:
        self._alive = False
        self._channel.close()
        status = self._end(not self._interrupted)
        return self.limits.overdue() if isinstance(error, TimeoutError) else self.limits.exceeded(status)
