"""The host time between forward calls: choosing and delivering tokens, drafting, verification, learning.

The runner of a loop or of a batch measures it; drafters report their own share. The difference between calls with and
without drafts is the true cost of drafting, including the loop's own code (`edgedec.speculation.outside`). While a
drafter works, time in which another program had the core is excluded.
"""

from __future__ import annotations

from time import get_clock_info, perf_counter, thread_time

# Wall time counts up to this multiple of the thread's processor time. THREADS: a drafter may use further threads; _ALL:
# the whole work between calls hardly does.
THREADS, _ALL = 2.0, 1.25
# Some systems count processor time in steps of milliseconds only.
FINE = get_clock_info("thread_time").resolution <= 1e-5


class Gaps:
    """The host time of one loop or one batch. All are running sums up to the start of the last forward. `total`:
    seconds outside of forwards, without the consumer's time; `forwards`: their number; `counted`: seconds reported by
    drafters; `drafts`: sequences with drafted rows; `tokens`: tokens delivered to the consumer. watched: a drafter
    works before the next forward."""

    __slots__ = (
        "_busy",
        "_consumed",
        "_counting",
        "_drafting",
        "_since",
        "counted",
        "drafts",
        "forwards",
        "tokens",
        "total",
        "watched",
    )

    def __init__(self) -> None:
        self.total = self.counted = 0.0
        self.forwards = self.drafts = self.tokens = 0
        self.watched = False
        self._counting = self._consumed = 0.0
        self._drafting = 0
        # This thread's processor time and the clock's time when watching began; clock 0: it began at the last forward's
        # end.
        self._busy, self._since = -1.0, 0.0

    def watch(self) -> None:
        """Note that a drafter begins to work."""
        self.watched = True
        if self._busy < 0 and FINE:
            self._busy, self._since = thread_time(), perf_counter()

    def add_forward(self, outside: float) -> None:
        """Note that a forward begins, `outside` seconds after the end of the last one."""
        outside -= self._consumed
        if self._busy >= 0:
            passed = perf_counter() - self._since if self._since else outside
            outside -= max(0.0, passed - _ALL * (thread_time() - self._busy))
            self._busy = -1.0
        self.total += outside
        self.forwards += 1
        self.counted, self.drafts, self._consumed = self._counting, self._drafting, 0.0

    def end_forward(self) -> None:
        """Note that the forward ended; called only if `watched`."""
        self.watched = False
        if FINE:
            self._busy, self._since = thread_time(), 0.0

    def count(self, seconds: float) -> None:
        """Add the seconds that a drafter worked."""
        self._counting += seconds

    def add_draft(self) -> None:
        """Count a sequence with drafted rows in the next forward."""
        self._drafting += 1

    def consumed(self, seconds: float) -> None:
        """Add the seconds that the consumer took for one token."""
        self._consumed += seconds
        self.tokens += 1
