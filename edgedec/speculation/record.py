"""The record of one drafter: what its proposals take and bring, and when it is asked again.

A proposal is worth asking for if the tokens that it is expected to add are worth more than its time and its rows. A
drafter without enough proposals is tried; one that does not pay waits, each time twice as long, but never longer than
makes its tries negligible. Gains are kept as tokens and rows and are priced at each call, because what a token is worth
changes with the number of sequences. What a drafter did in other texts counts as its first proposals in this one."""

from __future__ import annotations

from ctypes import Structure, c_double, c_int64
from math import ceil
from typing import Any

from edgedec.decoding.allocation import MARGIN
from edgedec.decoding.draft import Drafter
from edgedec.runtime import Outputs
from edgedec.speculation.bank import FIRST, TRIAL, Experience, Means
from edgedec.speculation.costs import Costs
from edgedec.speculation.prices import SURE, Prices, chain_length
from edgedec.speculation.reasons import HOPELESS, UNOPENED, USED, WAITS, Runs
from edgedec.trees.calibration import Calibration

# The weight of other texts, in proposals, and the proposals over which a drafter's reading of a prompt is charged.
_WEIGHT, _SPREAD = 4.0, 16
# Proposals until measured times count in place of the declared effort.
_MEASURED = 4
# The rate of a text's running means.
_QUICK = 0.2
# The share of decoding time that the tries of a waiting drafter may take.
_SHARE = 0.004
# Of drawn tokens: drafts until a length that does not pay is tried again, the upper limit of the acceptance rate, and
# the rate of its mean.
_RETRY, _MOST_RATE, _SLOW = 64, 0.97, 0.05
# The most tokens that a drafter is shown without being asked.
_UNREAD = 16
# The longest wait in calls.
_LONGEST = 256
# What is left of a measured time at each look at a drafter that is not asked because of it.
_DOUBT = 63 / 64


class DrafterRecord(Structure):
    """One drafter of a text. `name`, `drafter`, `calibration`; `proposed`, `accepted`, `seconds` for display. own: its
    means; took: the seconds of the proposal and of the learning that are not in them yet; wait: the calls until it may
    be asked, and `next` the next such wait; asked: how often it was."""

    own: Means
    took: float
    seconds: float
    wait: int
    next: int
    asked: int
    _fields_ = (
        ("own", Means),
        *((name, c_double) for name in ("took", "seconds")),
        *((name, c_int64) for name in ("wait", "next", "asked")),
    )

    def __init__(self, name: str, drafter: Drafter, calibration: Calibration, shared: Experience | None = None) -> None:
        super().__init__()
        self.name, self.drafter, self.calibration = name, drafter, calibration
        self.shared = Experience() if shared is None else shared
        self.proposed = self.accepted = 0
        self.runs = Runs()
        # Whether it cannot pay even with perfect guesses; whether it got the result of the last call.
        self.hopeless, self.follows = False, False
        self._sequences = 1
        # Whether its tokens are drawn, and their acceptance rate, which sets how many are: a drawn draft is not cut.
        self.draws, self.drawn_rate, self._drawings = False, SURE, 0
        self.restart()

    def restart(self) -> None:
        """Another text begins."""
        self.own, self.wait, self.next = Means(), 0, FIRST
        self.follows, self._unread = False, 0

    @property
    def reads(self) -> bool:
        """Whether it needs the results of every call."""
        return self.drafter.reads != Outputs()

    def gain(self, prices: Prices) -> float:
        """The seconds that its next proposal is expected to gain, without the time that it takes."""
        own, shared = self.own, self.shared
        weight = _WEIGHT if shared.n >= TRIAL else 0.0
        n = own.n + weight
        if not n:
            return 0.0
        tokens = (own.n * own.tokens + weight * shared.tokens) / n
        rows = (own.n * own.rows + weight * shared.rows) / n
        return tokens * prices.token - prices.of_rows(rows)

    @property
    def takes(self) -> float:
        """The seconds of a proposal, learning from its call included."""
        return self.own.seconds if self.own.n > 1 or not self.shared.n else self.shared.seconds

    def needs(self, prices: Prices) -> float:
        """The seconds that asking it may cost."""
        effort = self.drafter.effort
        return effort.seconds(prices.call) if effort is not None and not self.shared.n else self.takes

    def doubt(self, prices: Prices, most: float) -> None:
        """Trust a measured time less if not even a full balance, `most` seconds, can pay for it. It would not be
        measured again, and may be from a time when other programs had the cores."""
        if self.needs(prices) > most:
            self.own.seconds *= _DOUBT
            self.shared.seconds *= _DOUBT

    def follow(self, tokens: int) -> None:
        """Note that it got the result of a call. It reads what it was shown at its next proposal, so it is shown no
        more if that is too much."""
        self.follows = True
        self._unread += tokens
        if self.reads and self._unread > _UNREAD:
            self.follows, self._unread, self.wait = False, 0, FIRST

    def learn_hope(self, prices: Prices) -> None:
        """Find out whether it would lose even with nearly all guesses right. Only for drafters with a declared effort.

        Worked example: 0.1 ms a token, 0.03 for each row, 0.2 ms for two tokens ahead: 1.98 tokens for 0.33 ms and 2.94
        for 0.36 ms are no more than one for 0.1 ms.
        """
        effort = self.drafter.effort
        if effort is None:
            return
        takes = self.takes if self.shared.n >= _MEASURED else effort.seconds(prices.call)
        tokens, path = 0.0, 1.0
        self.hopeless = True
        for rows in range(1, min(effort.depth, len(prices.added) - 1) + 1):
            path *= SURE
            tokens += path
            if tokens * prices.token > prices.added[rows] + prices.draft + takes:
                self.hopeless = False
        if self.hopeless:
            self.doubt(prices, 0.0)

    def pays(self, prices: Prices) -> bool:
        """Whether its proposals pay, or may pay as far as is known."""
        return self.shared.n < TRIAL or self.gain(prices) >= self.takes

    def pass_calls(self, calls: int, sequences: int) -> None:
        """Note that `calls` calls have passed. In other company it is tried anew."""
        self.wait = max(self.wait - calls, 0)
        self.shared.calls += calls
        if not self._sequences / 2 <= sequences <= 2 * self._sequences:
            self.wait, self.next, self._sequences = 0, FIRST, sequences
            self.shared.until = min(self.shared.until, self.shared.calls)

    def ready(self, prices: Prices) -> bool:
        """Whether it is to be asked at this call, if the bank can pay."""
        if self.hopeless or self.wait:
            return False
        return self.tried or self.pays(prices) or self.shared.calls >= self.shared.until

    @property
    def tried(self) -> bool:
        """Whether it is being tried in this text: it reads every call, and was asked too seldom to be judged."""
        return self.follows and 0 < self.own.n < TRIAL

    def calls_left(self, prices: Prices) -> int:
        """The calls until it is to be asked."""
        if self.hopeless:
            return _LONGEST
        return max(self.wait, 0 if self.pays(prices) else self.shared.until - self.shared.calls)

    def judge(self, tokens: float, rows: float, prices: Prices) -> None:
        """Add a proposal that was expected to add `tokens` tokens with `rows` rows, and decide how long it waits."""
        took, self.took, self._unread = self.took, 0.0, 0
        self.asked += 1
        first = self.own.n == 0 and self.shared.n > 0  # reads the text, which tells nothing about the next ones
        self.own.add(took, tokens, rows, _QUICK)
        self.shared.add(min(took, self.shared.seconds) if first else took, tokens, rows)
        longest = max(min(ceil(self.takes / (_SHARE * prices.token)), _LONGEST), 1) if prices.token else _LONGEST
        if self.pays(prices) or (self.reads and self.own.n < TRIAL):
            self.next = max(self.next // 2, FIRST)
            self.shared.wait = max(self.shared.wait // 2, FIRST)
            return
        self.wait, self.next = min(self.next, longest), min(2 * self.next, _LONGEST)
        self.shared.until = self.shared.calls + self.wait
        self.shared.wait = min(2 * self.shared.wait, _LONGEST)

    def charge(self, took: float) -> float:
        """The part of a proposal's time that is charged now. The first of a text includes reading its prompt, which
        serves all that follow, and is spread over them, and over those of other texts if it ends before."""
        shared, usual = self.shared, self.shared.seconds
        if self.reads and not self.own.n and shared.n and took > usual:
            shared.debt += took - usual
            took = usual
        part = min(shared.debt, max(shared.debt, took) / _SPREAD)
        shared.debt -= part
        return took + part

    def add_time(self, seconds: float) -> None:
        """Add the time of a proposal, or of learning."""
        self.took += seconds
        self.seconds += seconds

    def drawn_length(self, costs: Costs, rows: int) -> int:
        """The number of tokens to draw in a call with `rows` rows; every _RETRY drafts more than pays at its rate,
        which may have risen."""
        self._drawings += 1
        if self.drawn_rate >= SURE or self._drawings % _RETRY == 0:
            return _RETRY
        return chain_length(self.drawn_rate, costs, rows)

    def add_drawn(self, drawn: int, accepted: int) -> None:
        """Count accepted tokens of those that it drew."""
        self.proposed += drawn
        self.accepted += accepted
        rate = min(accepted / min(drawn, accepted + 1), _MOST_RATE)
        self.drawn_rate += (rate - self.drawn_rate) * _SLOW

    def facts(self, prices: Prices | None, always: bool = False) -> dict[str, Any]:
        """Its state for display, as JSON values: when it is asked again, what a proposal takes and brings. always: no
        wait applies."""
        wait = self.wait if prices is None or self.hopeless else self.calls_left(prices)
        wait = 0 if always else wait
        state = HOPELESS if self.hopeless else WAITS if wait else USED if self.asked else UNOPENED
        found = {"state": state, "wait": wait, "asked": self.asked, "takes_s": self.takes, "guessed": self.runs.guessed}
        if state != HOPELESS and self.runs.refused:
            found |= self.runs.facts(MARGIN)
        return found if prices is None else found | {"gain_s": self.gain(prices), "needs_s": self.needs(prices)}

    def report(self, facts: dict[str, Any]) -> dict[str, Any]:
        """Figures for display, as JSON values. facts: of the record by which it is asked, its own or another."""
        found = {"proposed": self.proposed, "accepted": self.accepted, "seconds": self.seconds} | facts
        if facts["state"] == USED and not self.proposed and self.runs.refused:  # others of the same record ran
            found |= self.runs.facts(MARGIN)
        return found | self.drafter.report()
