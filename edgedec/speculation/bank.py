"""The bank of drafting: the seconds that it may lose, so that no text is much slower than without drafts.

    balance = start + rate · (the texts' time without drafts) + what drafts saved - what they cost

With nothing left no drafter is asked and no draft runs, and a draft's rows may cost no more than the balance divided by
the chance that all of them are wrong (`risked`). So whatever the guesses are, decoding loses at most

    start + rate · (time without drafts) + one draft + the error of the estimated costs

The balance is at most `Terms.most` calls: what one text gains must not pay for many losses in others. A text may also
risk what it gained itself (`TextAccount.own`), up to `_OWN` calls. Sessions of one thread share one bank, so that many
short texts lose no more than one long text."""

from __future__ import annotations

from dataclasses import dataclass

# The most of its own gains that a text may risk, in calls without drafts.
_OWN = 4.0
# The least chance that a draft is all wrong.
_SUREST = 0.1
# The decay per call of the guess statistics, and the number of prior guesses that count as good as expected.
_KEEP, _GOOD = 0.99, 4.0


@dataclass(frozen=True)
class Terms:
    """rate: the share of the time without drafts that may be lost; most: the largest balance, and the first one, in
    calls without drafts."""

    rate: float
    most: float


# `auto` must not cost anything that can be noticed; drafters that a user names are used unless they lose a tenth.
AUTO, NAMED = Terms(0.008, 1.0), Terms(0.1, 6.4)


class Bank:
    """`left`: the balance in seconds. `saved`, `lost`: seconds that drafts saved and cost so far, drafters' own time
    included."""

    def __init__(self, terms: Terms = AUTO) -> None:
        self.terms, self.left = terms, 0.0
        self.saved = self.lost = 0.0
        self._call, self._open = 0.0, False
        self._expected = self._accepted = 0.0

    def open(self, call: float) -> None:
        """Set the seconds of a call without drafts; the first time also the balance."""
        self._call = call
        if not self._open:
            self.left, self._open = self.terms.most * call, True
        self.left = min(self.left, self.terms.most * call)

    def add(self, seconds: float) -> None:
        """Add a gain, or a loss if it is negative."""
        self.left = min(self.left + seconds, self.terms.most * self._call)

    def add_guesses(self, expected: float, accepted: int) -> None:
        """Add the expected and the actual number of accepted guesses of a call."""
        self._expected = self._expected * _KEEP + expected
        self._accepted = self._accepted * _KEEP + accepted

    @property
    def trust(self) -> float:
        """The factor on chances: lower if fewer guesses are accepted than expected."""
        return min(1.0, (self._accepted + _GOOD) / (self._expected + _GOOD))


class TextAccount:
    """The account of one text in a bank. `own`: the seconds that its drafts gained and that it may risk."""

    def __init__(self, bank: Bank) -> None:
        self.bank, self.own = bank, 0.0

    @property
    def left(self) -> float:
        """The seconds that the next draft may lose."""
        return self.bank.left + self.own

    def reset(self) -> None:
        """Another text begins."""
        self.own = 0.0

    def add_time(self, seconds: float) -> None:
        """Add the time that the tokens since the last call of this would have taken without drafts."""
        self.bank.add(self.bank.terms.rate * seconds)

    def settle(self, saved: float, cost: float, call: float) -> None:
        """Add a draft that saved `saved` seconds of calls and cost `cost`; call: the seconds of a call without it."""
        self.bank.saved += saved
        self.bank.lost += cost
        gain = saved - cost
        own = self.own + gain
        self.own = min(max(own, 0.0), _OWN * call)
        self.bank.add(own - self.own)


def risked(left: float, first: float) -> float:
    """The most seconds that a draft may cost if all of it is wrong, which happens with 1 - `first`. With nothing left
    nothing is risked.

    0.3 ms left, and the first token is right in 9 of 10 cases -> 3 ms
    """
    return left / max(1.0 - first, _SUREST)
