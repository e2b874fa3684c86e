"""How long drafters worked: the clock's time, without that in which another program had the core."""

from __future__ import annotations

from time import perf_counter, thread_time

from edgedec.decoding.host_time import FINE, THREADS


class OwnTime:
    """Runs from when it is made."""

    def __init__(self) -> None:
        self._wall, self._busy = perf_counter(), thread_time()

    def seconds(self, elsewhere: float = 0.0, forwards: float = 0.0) -> float:
        """What passed, less what was spent `elsewhere`; of it `forwards` was the work of forward passes."""
        own = perf_counter() - self._wall - elsewhere - forwards
        return forwards + (min(own, THREADS * (thread_time() - self._busy)) if FINE else own)
