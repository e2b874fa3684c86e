"""The bank of drafting: the seconds that it may lose, so that no text is much slower than without drafts.

    balance = start + rate · (the texts' time without drafts) + what drafts saved - what they cost

With nothing left no drafter is asked and no draft runs, and a draft's rows may cost no more than the balance divided by
the chance that all of them are wrong (`risked`). So whatever the guesses are, decoding loses at most

    start + rate · (time without drafts) + one draft + the error of the estimated costs

The balance is at most `Terms.most` calls: what one text gains must not pay for many losses in others. A text may also
risk what it gained itself (`TextAccount.own`), up to `_OWN` calls. Sessions of one thread share one bank, so that many
short texts lose no more than one long text.

`Means` and `Experience` are what a drafter's proposals took and brought: in one text, and in all texts of a runtime."""

from __future__ import annotations

from ctypes import Structure, c_double, c_int64
from dataclasses import dataclass
from math import ceil

# The most of its own gains that a text may risk, in calls without drafts.
_OWN = 4.0
# The looks at a balance that are paid before it is looked at again.
_LOOKS = 4
# The least chance that a draft is all wrong.
_SUREST = 0.1
# The decay per call of the guess statistics, and the number of prior guesses that count as good as expected.
_KEEP, _GOOD = 0.99, 4.0
# Proposals until a drafter is judged; the first wait of one that does not pay, in calls; the rate of running means; the
# cap of a time in multiples of the mean: more is another program's.
TRIAL, FIRST, SMOOTH, _SPIKE = 8, 16, 0.1, 4.0


@dataclass(frozen=True)
class Terms:
    """rate: the share of the time without drafts that may be lost; most: the largest balance, and the first one, in
    calls without drafts."""

    rate: float
    most: float


# `auto` must not cost anything that can be noticed; drafters that a user names are used unless they lose a tenth.
AUTO, NAMED = Terms(0.008, 1.0), Terms(0.1, 6.4)


class Bank(Structure):
    """`left`: the balance in seconds. `saved`, `lost`: seconds that drafts saved and cost so far, drafters' own time
    included. rate, most: of its terms; call: the seconds of a call without drafts; expected, accepted: guesses of late;
    opened: whether the balance was set."""

    rate: float
    most: float
    left: float
    saved: float
    lost: float
    call: float
    expected: float
    accepted: float
    opened: int
    _fields_ = (
        *((name, c_double) for name in ("rate", "most", "left", "saved", "lost", "call", "expected", "accepted")),
        ("opened", c_int64),
    )

    def __init__(self, terms: Terms = AUTO) -> None:
        super().__init__(terms.rate, terms.most)
        self.terms = terms

    def open(self, call: float) -> None:
        """Set the seconds of a call without drafts; the first time also add the first balance."""
        self.call = call
        if not self.opened:
            self.left, self.opened = self.left + self.most * call, 1
        self.left = min(self.left, self.most * call)

    def add(self, seconds: float) -> None:
        """Add a gain, or a loss if it is negative."""
        self.left = min(self.left + seconds, self.most * self.call)

    def divide(self, other: Bank) -> None:
        """Take half of another balance, so that forks of a text together lose no more than it. Before its first call
        that has none, and there is nothing to take."""
        self.left, self.call, self.opened = other.left / 2, other.call, 1
        other.left -= self.left

    def add_guesses(self, expected: float, accepted: int) -> None:
        """Add the expected and the actual number of accepted guesses of a call."""
        self.expected = self.expected * _KEEP + expected
        self.accepted = self.accepted * _KEEP + accepted

    @property
    def trust(self) -> float:
        """The factor on chances: lower if fewer guesses are accepted than expected."""
        return min(1.0, (self.accepted + _GOOD) / (self.expected + _GOOD))


class TextAccount(Structure):
    """The account of one text in a bank. `own`: the seconds that its drafts gained and that it may risk; `looked`:
    those of the last look at drafters of which none drafted; `lacking`: what it takes to ask the cheapest of those that
    could not be paid for, 0 if there is none."""

    own: float
    _fields_ = (("own", c_double),)

    def __init__(self, bank: Bank) -> None:
        super().__init__()
        self.bank, self.looked, self.lacking = bank, 0.0, 0.0

    @property
    def left(self) -> float:
        """The seconds that the next draft may lose."""
        return self.bank.left + self.own

    @property
    def most(self) -> float:
        """The most seconds that a draft may lose where drafts have gained nothing."""
        return self.bank.most * self.bank.call

    def lack(self, seconds: float) -> None:
        """Note that so much would have to be left to ask a drafter."""
        self.lacking = min(self.lacking or seconds, seconds)

    def calls_in_debt(self, token: float, most: int) -> int:
        """The calls until the balance pays for a drafter and a look, at least for a few looks; at most `most`. token:
        its seconds. With a small model a look takes what several calls earn: looking sooner, nothing would ever be
        paid back.

        2 ms owed, looks of 0.1 ms, 3 ms a token, of which 0.8 % may be lost -> 100 calls
        """
        owed = max(_LOOKS * self.looked, min(self.lacking, self.most) + self.looked) - self.left
        return min(ceil(owed / (self.bank.rate * token)), most) if owed > 0.0 < token else 0

    def reset(self) -> None:
        """Another text begins."""
        self.own = 0.0

    def add_time(self, seconds: float) -> None:
        """Add the time that the tokens since the last call of this would have taken without drafts."""
        self.bank.add(self.bank.rate * seconds)

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


class Means(Structure):
    """Running means of proposals: their `seconds`, the `tokens` that they are expected to add, the `rows` that ran.
    `n`: how many proposals there were. In memory that the runtime's own governor reads and writes too, as are the other
    structures of this package."""

    seconds: float
    tokens: float
    rows: float
    n: int
    _fields_ = (("seconds", c_double), ("tokens", c_double), ("rows", c_double), ("n", c_int64))

    def add(self, seconds: float, tokens: float, rows: float, smooth: float = SMOOTH) -> None:
        """Add a proposal. The first time counts until the second is known: it includes opening what is needed."""
        self.n += 1
        if self.n == 2:
            self.seconds = min(self.seconds, seconds)
        elif self.n > TRIAL:
            seconds = min(seconds, _SPIKE * self.seconds)
        rate = max(smooth, 1 / self.n)
        self.seconds += (seconds - self.seconds) * rate
        self.tokens += (tokens - self.tokens) * rate
        self.rows += (rows - self.rows) * rate


class Experience(Means):
    """What a drafter did in all texts of a thread. `calls`: of all these texts; `until`: no text that does not know
    better tries it before so many; `wait`: the next such wait; `debt`: the seconds of reading prompts that are not
    charged yet, because a text may end before they are."""

    calls: int
    until: int
    wait: int
    debt: float
    _fields_ = (("calls", c_int64), ("until", c_int64), ("wait", c_int64))  # type: ignore[assignment]  # more fields

    def __init__(self, seconds: float = 0.0, tokens: float = 0.0, rows: float = 0.0, n: int = 0) -> None:
        super().__init__(seconds, tokens, rows, n)
        self.wait, self.debt = FIRST, 0.0

    @classmethod
    def known(cls, seconds: float, tokens: float, rows: float) -> Experience:
        """That of an earlier process."""
        return cls(seconds, tokens, rows, TRIAL)
