"""How long drafters worked: the clock's time, without that in which another program had the core."""

from __future__ import annotations

from time import get_clock_info, perf_counter, thread_time

# The clock's time counts up to so much of this thread's processor time: a drafter may use further threads.
_THREADS = 2.0
# Some systems count processor time in steps of milliseconds only.
_FINE = get_clock_info("thread_time").resolution <= 1e-5


class OwnTime:
    """Runs from when it is made."""

    def __init__(self) -> None:
        self._wall, self._busy = perf_counter(), thread_time()

    def seconds(self, elsewhere: float = 0.0, forwards: float = 0.0) -> float:
        """What passed, less what was spent `elsewhere`; of it `forwards` was the work of forward passes."""
        own = perf_counter() - self._wall - elsewhere - forwards
        return forwards + (min(own, _THREADS * (thread_time() - self._busy)) if _FINE else own)
