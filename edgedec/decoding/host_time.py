"""The host time between forward calls: choosing and delivering tokens, drafting, verification, learning.

The runner of a loop or of a batch measures it; drafters report their own share. The difference between calls with and
without drafts is the true cost of drafting, including the loop's own code. While a drafter works, time in which another
program had the core is excluded.
"""

from __future__ import annotations

from time import get_clock_info, perf_counter, thread_time

# Wall time counts up to this multiple of the thread's processor time. THREADS: a drafter may use further threads; _ALL:
# the whole work between calls hardly does.
THREADS, _ALL = 2.0, 1.25
# Some systems count processor time in steps of milliseconds only.
FINE = get_clock_info("thread_time").resolution <= 1e-5
# The cap of a draft's added time, in multiples of the counted time and the time without drafts. With a fine processor
# clock the time of other programs is already excluded.
_BEYOND = 50.0 if FINE else 3.0


# The rate of means; the cap of a sample in multiples of the mean (more: another program had the core); the calls that
# are needed before the mean without drafts counts as known.
_SMOOTH, _SPIKE, _KNOWN = 0.05, 3.0, 2
# The decay of a draft's added time per call without drafts, so that a wrong figure is corrected eventually.
_FADE = 0.998


class BetweenCalls:
    """The mean time between calls. `plain`: seconds per sequence, without drafts; `draft`: the seconds that a
    sequence's drafted rows add, besides the drafters' own time: building, verifying and committing them, and the
    processor's caches that they displace. A runtime's sessions share it, and it is saved with the costs of calls."""

    def __init__(self) -> None:
        self.plain = self.draft = 0.0
        self._plains = 0
        self._added = self._drafts = 0.0

    @property
    def known(self) -> bool:
        """Whether the time without drafts is known."""
        return self._plains >= _KNOWN

    def start(self, plain: float) -> None:
        """Restore the value of an earlier process; 0: none."""
        if plain > 0:
            self.plain, self._plains = plain, _KNOWN

    def add(self, seconds: float, counted: float, sequences: int, drafts: int) -> None:
        """Add the time between two calls of `sequences` sequences, `drafts` of them with drafted rows before or after
        it; counted: the part that drafters measured themselves."""
        if not drafts and not counted:
            self._add_plain(seconds / sequences)
        elif self.known and drafts:
            usual = self.plain * sequences
            beyond = min(max(seconds - counted - usual, 0.0), _BEYOND * (counted + usual))
            self._added += beyond - _SMOOTH * self._added
            self._drafts += drafts - _SMOOTH * self._drafts
            self.draft = self._added / max(self._drafts, 1.0)

    def _add_plain(self, seconds: float) -> None:
        if self.known:
            seconds = min(seconds, _SPIKE * self.plain)
        elif self._plains:  # the first calls include one-time work
            seconds = min(seconds, self.plain)
        self._plains += 1
        self.plain += (seconds - self.plain) * max(_SMOOTH, 1 / self._plains)
        self._added *= _FADE
        self.draft = self._added / max(self._drafts, 1.0)


class Gaps:
    """The host time of one loop or one batch, between forwards of the text's own model; forwards of draft models belong
    to the time between them. `total`: seconds between forwards, without the consumer's time; `forwards`: their
    number; `tokens`: tokens delivered to the consumer. watched: a drafter works before the next forward; `between`: the
    means that are updated, None while no drafter has worked. `pause`: the seconds by which the drafts of several texts
    may prolong their call, besides its own time; 0: no limit."""

    __slots__ = (
        "_busy",
        "_consumed",
        "_counted",
        "_drafting",
        "_last_drafts",
        "_passed",
        "_since",
        "between",
        "forwards",
        "pause",
        "tokens",
        "total",
        "watched",
    )

    def __init__(self, pause: float = 0.0) -> None:
        self.total, self.pause = 0.0, pause
        self.forwards = self.tokens = 0
        self.watched = False
        self.between: BetweenCalls | None = None
        self._passed = self._counted = self._consumed = 0.0
        self._drafting = self._last_drafts = 0
        # This thread's processor time and the clock's time when watching began; clock 0: it began at the last forward's
        # end.
        self._busy, self._since = -1.0, 0.0

    def watch(self, between: BetweenCalls) -> None:
        """Note that a drafter begins to work."""
        self.watched, self.between = True, between
        if self._busy < 0 and FINE:
            self._busy, self._since = thread_time(), perf_counter()

    def add_forward(self, between: float, sequences: int = 1, own: bool = True) -> None:
        """Note that a forward of so many sequences begins, `between` seconds after the end of the last one. own: of the
        text's model, not of a draft in progress."""
        between -= self._consumed
        if self._busy >= 0:
            passed = perf_counter() - self._since if self._since else between
            between -= max(0.0, passed - _ALL * (thread_time() - self._busy))
            self._busy = -1.0
        between = max(between, 0.0)
        self.total += between
        self._passed += between
        self._consumed = 0.0
        if own:
            self._add_own(sequences)

    def _add_own(self, sequences: int) -> None:
        self.forwards += 1
        if self.between is not None and self.forwards > 1:
            # Most of a draft's time between calls is after its call.
            drafts = self._last_drafts or self._drafting
            self.between.add(self._passed, self._counted, sequences, drafts)
        self._last_drafts, self._drafting = self._drafting, 0
        self._passed = self._counted = 0.0

    def end_forward(self) -> None:
        """Note that the forward ended."""
        if self.watched and FINE:
            self._busy, self._since = thread_time(), 0.0
        self.watched = False

    def count(self, seconds: float) -> None:
        """Add the seconds that a drafter worked."""
        self._counted += seconds

    def add_steps(self, spent: float, drafts: int) -> None:
        """Count the drafting of steps that the runtime made by itself."""
        self._counted += spent
        self._drafting += drafts

    def add_draft(self) -> None:
        """Count a sequence with drafted rows in the next forward."""
        self._drafting += 1

    def consumed(self, seconds: float) -> None:
        """Add the seconds that the consumer took for one token."""
        self._consumed += seconds
        self.tokens += 1


class OwnTime:
    """A stopwatch of a drafter's work that starts when it is created: wall time, without time in which another program
    had the core."""

    def __init__(self) -> None:
        self._wall, self._busy = perf_counter(), thread_time()

    def seconds(self, elsewhere: float = 0.0, forwards: float = 0.0) -> float:
        """The elapsed seconds without those spent `elsewhere`; `forwards`: the part of it that forward passes took."""
        own = perf_counter() - self._wall - elsewhere - forwards
        return forwards + (min(own, THREADS * (thread_time() - self._busy)) if FINE else own)
