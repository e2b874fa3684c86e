"""The time between forward calls: what Python takes to choose tokens, hand them over, draft, verify and learn.

Whoever runs the calls of a loop, or of a batch, counts it; drafters count what they know to be theirs. The difference
between calls with drafts and without them is what drafting really takes, whoever's code that is
(`edgedec.speculation.outside`). Time in which another program had the core is left out where drafters work.
"""

from __future__ import annotations

from time import get_clock_info, perf_counter, thread_time

# The clock's time counts up to so much of this thread's processor time: a drafter may use further threads; all that is
# done between calls hardly does.
THREADS, _ALL = 2.0, 1.25
# Some systems count processor time in steps of milliseconds only.
FINE = get_clock_info("thread_time").resolution <= 1e-5


class Gaps:
    """Of one loop or one batch. All are sums so far, as they were when the last forward began: `total`: seconds outside
    of forwards, without the consumer's of tokens; `forwards`: how many; `counted`: seconds that drafters counted as
    theirs; `drafts`: sequences that had drafted rows; `tokens`: given to the consumer. watched: a drafter works before
    the forward to come."""

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
        # This thread's processor time and the clock's since it is looked at; 0: since the forward before.
        self._busy, self._since = -1.0, 0.0

    def watch(self) -> None:
        """A drafter begins to work."""
        self.watched = True
        if self._busy < 0 and FINE:
            self._busy, self._since = thread_time(), perf_counter()

    def add_forward(self, outside: float) -> None:
        """A forward begins; since the one before it so many seconds passed outside of forwards."""
        outside -= self._consumed
        if self._busy >= 0:
            passed = perf_counter() - self._since if self._since else outside
            outside -= max(0.0, passed - _ALL * (thread_time() - self._busy))
            self._busy = -1.0
        self.total += outside
        self.forwards += 1
        self.counted, self.drafts, self._consumed = self._counting, self._drafting, 0.0

    def end_forward(self) -> None:
        """The forward ended; called if it was watched."""
        self.watched = False
        if FINE:
            self._busy, self._since = thread_time(), 0.0

    def count(self, seconds: float) -> None:
        """A drafter worked so long."""
        self._counting += seconds

    def add_draft(self) -> None:
        """A sequence has drafted rows in the next forward."""
        self._drafting += 1

    def consumed(self, seconds: float) -> None:
        """So long the program that gets the tokens worked, for one of them."""
        self._consumed += seconds
        self.tokens += 1
