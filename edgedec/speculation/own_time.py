"""The drafters' working time: wall time, without time in which another program had the core."""

from __future__ import annotations

from time import perf_counter, thread_time

from edgedec.decoding.host_time import FINE, THREADS


class OwnTime:
    """A stopwatch that starts when it is created."""

    def __init__(self) -> None:
        self._wall, self._busy = perf_counter(), thread_time()

    def seconds(self, elsewhere: float = 0.0, forwards: float = 0.0) -> float:
        """The elapsed seconds without those spent `elsewhere`; `forwards`: the part of it that forward passes took."""
        own = perf_counter() - self._wall - elsewhere - forwards
        return forwards + (min(own, THREADS * (thread_time() - self._busy)) if FINE else own)
