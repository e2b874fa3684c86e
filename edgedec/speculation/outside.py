"""The time of drafting outside of forward calls: the time between calls with drafts, minus the time without.

Drafters measure their own time, but a draft costs more: other code builds, verifies, commits and accounts its rows, and
the processor's caches are displaced. So the runner of the calls measures the time between them
(`edgedec.decoding.host_time`), a mean of it is kept for calls without drafts, and the excess is charged if it is more
than the drafters' own time: `max(own, between - usual)`."""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.decoding.host_time import FINE, Gaps

# The rate of means; the cap of a sample in multiples of the mean (more: another program had the core); the calls
# without drafts that are needed before an excess is charged; the drafts that are needed to estimate one draft's share.
_SMOOTH, _SPIKE, _KNOWN, _DRAFTS = 0.05, 3.0, 2, 4
# If all calls of a text had drafts, _TRIES calls run without one, provided that the time between calls is at least the
# share _MATTERS of a token's time. The result is saved with the costs of calls, so this is not repeated for every text.
_TRIES, _MATTERS = 5, 0.05
# The cap of the excess, in multiples of the counted time plus the time without drafts. With a fine processor clock the
# time of other programs is already excluded.
_BEYOND = 50.0 if FINE else 3.0
# The share of the time between calls that the delivery of one more token takes.
_TOKEN = 0.25
# The decay of a draft's added time per call without drafts, so that a wrong figure is corrected eventually.
_FADE = 0.998


class Usual:
    """`plain`: seconds between calls per sequence, without drafts; `draft`: the seconds that a sequence's drafted rows
    add, besides the drafters' own time; `trial`: the mean seconds of a proposal and of learning from its call, over all
    texts. Saved with the costs of calls (`costs`)."""

    def __init__(self) -> None:
        self.plain = self.draft = self.trial = 0.0
        self._trials = 0
        self._plains = 0
        self._added = self._drafts = self._least = 0.0
        self._last: tuple[int, float] = 0, -1.0

    def is_new(self, gaps: Gaps) -> bool:
        """Whether this is the first sequence of a forward to report the time before it."""
        last, self._last = self._last, (gaps.forwards, gaps.total)
        return last != self._last

    @property
    def known(self) -> bool:
        """Whether the time without drafts is known."""
        return self._plains >= _KNOWN

    def start(self, plain: float, trial: float = 0.0) -> None:
        """Restore the values of an earlier process; 0: none."""
        if plain > 0:
            self.plain, self._plains = plain, _KNOWN
        if trial > 0:
            self.trial, self._trials = trial, _DRAFTS

    def add_trial(self, seconds: float) -> None:
        """Add the time of a proposal."""
        self._trials += 1
        if self._trials > 1:
            seconds = min(seconds, _SPIKE * self.trial)
        self.trial += (seconds - self.trial) * max(2 * _SMOOTH, 1 / self._trials)

    def add_plain(self, seconds: float, calls: int = 1) -> None:
        """Add the time between calls without drafts, per call and sequence."""
        if self._plains >= _KNOWN:
            seconds = min(seconds, _SPIKE * self.plain)
        elif self._plains:  # the first calls include one-time work
            seconds = min(seconds, self.plain)
        self._plains += calls
        self._added *= _FADE**calls
        self.draft = self._added / max(self._drafts, 1.0)
        self.plain += (seconds - self.plain) * max(min(_SMOOTH * calls, 0.5), 1 / self._plains)

    def add_drafts(self, seconds: float, drafts: int) -> None:
        """Add the time that the drafted rows of `drafts` sequences took before and after their call. The first _DRAFTS
        include one-time work, so each of them counts no more than the least of them."""
        each = seconds / max(drafts, 1)
        self._least = min(self._least, each) if self._drafts else each
        if self._drafts < _DRAFTS:
            seconds = min(seconds, self._least * max(drafts, 1) if self._drafts else self.plain)
        self._added += seconds - _SMOOTH * self._added
        self._drafts += drafts - _SMOOTH * self._drafts
        self.draft = self._added / max(self._drafts, 1.0)


def with_outside(seconds: Sequence[float], usual: Usual, own: float = 0.0) -> list[float]:
    """The seconds of one sequence's calls by rows (none, one, …), with the time outside of them; own: the drafters' own
    time for a draft."""
    plain, drafted = usual.plain, usual.plain + usual.draft + own
    return [0.0, seconds[1] + plain, *[each + drafted for each in seconds[2:]]] if len(seconds) > 1 else []


class OutsideCalls:
    """The account of one text: its share of the time between the last two calls of its batch."""

    def __init__(self, usual: Usual) -> None:
        self.usual = usual
        self._gaps: Gaps | None = None
        self._own, self._drafts, self._busy = 0.0, 0, True
        self._total = self._counted = 0.0
        self._forwards = self._tokens = 0
        self._tries, self._passed = _TRIES, 0

    def lacks(self, worth: float, sequences: int) -> bool:
        """Whether the next call must run without drafts, to measure the time without. worth: seconds of a token."""
        if self.usual.known or self._gaps is None or self._passed < _DRAFTS or not self._tries:
            return False
        if self._gaps.total < _MATTERS * worth * sequences * self._gaps.forwards:
            return False
        self._tries -= 1
        return True

    def begin(self, gaps: Gaps, sequences: int) -> None:
        """Begin a proposal. Calls since the last charge had no drafts of this text."""
        gaps.watch()
        if gaps is not self._gaps:
            self._gaps, self._own, self._busy = gaps, 0.0, True
        elif gaps.forwards > self._forwards:
            self._busy = self._learn(gaps, sequences, self.usual.is_new(gaps))
        else:
            return
        self._mark(gaps)

    def count(self, seconds: float) -> None:
        """Add the time of this text's drafters."""
        if self._gaps is not None:
            self._own += seconds
            self._gaps.count(seconds)

    def add_draft(self) -> None:
        """Note that the next call has drafted rows of this text."""
        if self._gaps is not None:
            self._gaps.add_draft()

    def charge(self, sequences: int) -> float:
        """The seconds that this text's drafting took before the call that just ended, besides its own counted time."""
        gaps, own = self._gaps, self._own
        self._own = 0.0
        if gaps is None or gaps.forwards == self._forwards:
            return 0.0
        calls, drafts = gaps.forwards - self._forwards, gaps.drafts - self._drafts
        counted, plain = gaps.counted - self._counted, self.usual.plain * sequences * calls
        beyond = max(0.0, min(gaps.total - self._total - counted - plain, _BEYOND * (counted + plain)))
        new, self._passed = self.usual.is_new(gaps), self._passed + calls
        busy, self._busy = self._busy, self._learn(gaps, sequences, new)
        if not self.usual.known:
            self._mark(gaps)
            return 0.0
        if new and (drafts or busy):
            further = max(gaps.tokens - self._tokens - sequences * calls, 0)
            self.usual.add_drafts(max(beyond - _TOKEN * self.usual.plain * further, 0.0), drafts)
        self._mark(gaps)
        return beyond * own / counted if counted > 0 else 0.0

    def _learn(self, gaps: Gaps, sequences: int, new: bool) -> bool:
        """Whether one of the calls since the last mark had drafted rows. If none had, nor the call before them, their
        time counts as time without drafts; new: no other sequence has reported it."""
        calls, drafted = gaps.forwards - self._forwards, gaps.drafts > self._drafts
        if new and not (drafted or self._busy):
            seconds = gaps.total - self._total - (gaps.counted - self._counted)
            self.usual.add_plain(max(seconds, 0.0) / (calls * sequences), calls)
        return drafted

    def _mark(self, gaps: Gaps) -> None:
        self._total, self._counted = gaps.total, gaps.counted
        self._forwards, self._drafts, self._tokens = gaps.forwards, gaps.drafts, gaps.tokens
