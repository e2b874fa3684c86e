"""What drafting takes outside of forward calls: the time between calls with drafts, less that without.

Drafters measure their own time, but a draft takes more: its rows are built, verified, committed and judged by code that
knows nothing of drafters, and caches that others need are filled. So the time between calls is counted by whoever runs
them (`edgedec.decoding.host_time`), a mean of it is kept for calls without drafts, and what a call takes beyond that is
charged, if it is more than drafters counted themselves: `max(own, between - usual)`.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.decoding.host_time import FINE, Gaps

# How fast means follow; one sample counts for so many usual ones at most: something else had the core. So many calls
# without drafts are needed before what is beyond their mean is charged, and so many drafts to know what one adds.
_SMOOTH, _SPIKE, _KNOWN, _DRAFTS = 0.05, 3.0, 2, 4
# If all calls of a text have had drafts, so many go without, where so large a share of a token's time passes between
# calls: not every text of a process, for what is learned is kept with what calls cost.
_TRIES, _MATTERS = 5, 0.05
# What is beyond what drafters counted is at most so many times that and what passes without drafts. Where processor
# time is counted in fine steps what other programs took is no part of it.
_BEYOND = 50.0 if FINE else 3.0
# The share of the time between calls that one more token takes to be handed over.
_TOKEN = 0.25
# How fast it is forgotten, in calls without drafts, what a draft adds: else a wrong figure would never be put right.
_FADE = 0.998


class Usual:
    """`plain`: seconds between calls for each sequence, without drafts; `draft`: what a sequence's drafted rows add,
    beyond what drafters count themselves; `trial`: what a proposal takes of all texts, with what is learned of its
    call. Kept with what calls cost (`costs`)."""

    def __init__(self) -> None:
        self.plain = self.draft = self.trial = 0.0
        self._trials = 0
        self._plains = 0
        self._added = self._drafts = self._least = 0.0
        self._last: tuple[int, float] = 0, -1.0

    def is_new(self, gaps: Gaps) -> bool:
        """Is this the first of the sequences of a forward to speak of the time before it?"""
        last, self._last = self._last, (gaps.forwards, gaps.total)
        return last != self._last

    @property
    def known(self) -> bool:
        """Is it known what passes without drafts?"""
        return self._plains >= _KNOWN

    def start(self, plain: float, trial: float = 0.0) -> None:
        """What was kept of an earlier process; 0: nothing."""
        if plain > 0:
            self.plain, self._plains = plain, _KNOWN
        if trial > 0:
            self.trial, self._trials = trial, _DRAFTS

    def add_trial(self, seconds: float) -> None:
        """A proposal took so long."""
        self._trials += 1
        if self._trials > 1:
            seconds = min(seconds, _SPIKE * self.trial)
        self.trial += (seconds - self.trial) * max(2 * _SMOOTH, 1 / self._trials)

    def add_plain(self, seconds: float, calls: int = 1) -> None:
        """So many calls in a row without drafts had so much between them, each and for each sequence."""
        if self._plains >= _KNOWN:
            seconds = min(seconds, _SPIKE * self.plain)
        elif self._plains:  # the first ones open what is needed
            seconds = min(seconds, self.plain)
        self._plains += calls
        self._added *= _FADE**calls
        self.draft = self._added / max(self._drafts, 1.0)
        self.plain += (seconds - self.plain) * max(min(_SMOOTH * calls, 0.5), 1 / self._plains)

    def add_drafts(self, seconds: float, drafts: int) -> None:
        """Drafted rows of so many sequences added so much: before the call that has them, and after it. The first ones
        open what is needed: as many as are needed to know better count for no more than the least of them."""
        each = seconds / max(drafts, 1)
        self._least = min(self._least, each) if self._drafts else each
        if self._drafts < _DRAFTS:
            seconds = min(seconds, self._least * max(drafts, 1) if self._drafts else self.plain)
        self._added += seconds - _SMOOTH * self._added
        self._drafts += drafts - _SMOOTH * self._drafts
        self.draft = self._added / max(self._drafts, 1.0)


def with_outside(seconds: Sequence[float], usual: Usual, own: float = 0.0) -> list[float]:
    """The seconds of calls by rows (none, one, …) of one sequence, with what passes outside of them; own: of a draft,
    what drafters count themselves."""
    plain, drafted = usual.plain, usual.plain + usual.draft + own
    return [0.0, seconds[1] + plain, *[each + drafted for each in seconds[2:]]] if len(seconds) > 1 else []


class OutsideCalls:
    """The account of one text: what it did between the last two calls, beside the others of its batch."""

    def __init__(self, usual: Usual) -> None:
        self.usual = usual
        self._gaps: Gaps | None = None
        self._own, self._drafts, self._busy = 0.0, 0, True
        self._total = self._counted = 0.0
        self._forwards = self._tokens = 0
        self._tries, self._passed = _TRIES, 0

    def lacks(self, worth: float, sequences: int) -> bool:
        """Is the next call to go without drafts, so that it is known what passes without? worth: seconds of a token."""
        if self.usual.known or self._gaps is None or self._passed < _DRAFTS or not self._tries:
            return False
        if self._gaps.total < _MATTERS * worth * sequences * self._gaps.forwards:
            return False
        self._tries -= 1
        return True

    def begin(self, gaps: Gaps, sequences: int) -> None:
        """A proposal begins. Calls that passed since the last one was charged had no drafts of this text."""
        gaps.watch()
        if gaps is not self._gaps:
            self._gaps, self._own, self._busy = gaps, 0.0, True
        elif gaps.forwards > self._forwards:
            self._busy = self._learn(gaps, sequences, self.usual.is_new(gaps))
        else:
            return
        self._mark(gaps)

    def count(self, seconds: float) -> None:
        """This text's drafters took so long."""
        if self._gaps is not None:
            self._own += seconds
            self._gaps.count(seconds)

    def add_draft(self) -> None:
        """The next call has drafted rows of this text."""
        if self._gaps is not None:
            self._gaps.add_draft()

    def charge(self, sequences: int) -> float:
        """What this text's drafting took before the call that ended now, beyond what it counted itself."""
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
        """Had one of the calls since the last mark drafted rows? If none had, and neither had the one before, the time
        between them is that without drafts; new: no other sequence has said so."""
        calls, drafted = gaps.forwards - self._forwards, gaps.drafts > self._drafts
        if new and not (drafted or self._busy):
            seconds = gaps.total - self._total - (gaps.counted - self._counted)
            self.usual.add_plain(max(seconds, 0.0) / (calls * sequences), calls)
        return drafted

    def _mark(self, gaps: Gaps) -> None:
        self._total, self._counted = gaps.total, gaps.counted
        self._forwards, self._drafts, self._tokens = gaps.forwards, gaps.drafts, gaps.tokens
