"""Opens the drafters of a text when the bank can pay for it.

Creating the tables and records of a text takes some tenths of a millisecond, which many short texts of a small model
never earn back. So a text begins without drafters while the savings of all texts are less than what opening them takes:

    savings = balance of the bank + rate · (the time of texts without drafters, once the balance is at its most)

so that openings, too, lose no more than `rate` of the time (`bank`). Where drafting brings nothing, that would still be
lost for nothing: so openings that the gains of drafting do not pay for wait for the savings of 2, 4, 8 and then each
time 16 openings (`_Tries`). While the cost of a call is unknown there are no savings; a call of an opened text makes it
known, so the 1st, 2nd, 4th, 8th … look opens one.

One session may read many texts: where the balance is used up at the beginning of one, it begins without the drafters of
the one before, which keep what they know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from edgedec.decoding.context import Context
from edgedec.decoding.draft import Draft, Drafter, Proposal, State
from edgedec.decoding.host_time import OwnTime
from edgedec.drafters._wrapped import Wrapped
from edgedec.drafters.off import Off
from edgedec.speculation.bank import Bank, Means
from edgedec.speculation.reasons import BANK, TEXTS, UNOPENED

# The calls until the balance is looked at again.
_REST = 32
# The most openings whose savings one opening waits for, and that the gains of earlier texts pay for.
_LONGEST = 16


class Openings:
    """What opening the drafters of a text takes, in all texts of a thread, and what was saved for the next one."""

    def __init__(self, bank: Bank) -> None:
        self.bank, self._saved = bank, 0.0
        self._created, self._proposed = _Usual(), _Usual()
        self._tries, self._looks = _Tries(bank), 0

    def take(self) -> bool:
        """Whether a text opens its drafters now; counts as its opening."""
        if not self.bank.opened:
            self._looks += 1
            return self._looks & (self._looks - 1) == 0
        return self.paid and self._tries.take(self._seconds)

    @property
    def paid(self) -> bool:
        """Whether the savings pay for one more; true while its price is unknown."""
        return self._seconds <= self._saved + self.bank.left or not self._seconds

    @property
    def _seconds(self) -> float:
        return self._created.seconds + self._proposed.seconds

    def save(self, seconds: float) -> None:
        """Add a part of the time of texts without drafters."""
        room = max(self.bank.most * self.bank.call - self.bank.left, 0.0)
        self.bank.add(seconds)
        self._saved = min(self._saved + max(seconds - room, 0.0), self._seconds)
        self._tries.passed += seconds

    def add_created(self, seconds: float) -> None:
        """Charge the creation of a text's drafters."""
        if self._created.add(seconds):
            self.bank.lost += seconds
            self._tries.exclude(seconds)
            self._spend(seconds)

    def add_proposed(self, seconds: float) -> None:
        """Note the time of a text's first proposal, which the governor charges."""
        if self._proposed.add(seconds):
            self._spend(seconds)
            self.bank.add(seconds)

    def _spend(self, seconds: float) -> None:
        """Charge the savings, and the bank for what they lack."""
        part = min(self._saved, seconds)
        self._saved -= part
        self.bank.add(part - seconds)


class _Tries:
    """Decides which openings are tried, of those that are paid. `passed`: what all texts without drafters have saved so
    far."""

    def __init__(self, bank: Bank) -> None:
        self._bank, self.passed = bank, 0.0
        # Gains of drafting that no opening was tried for, and all gains at the last look at them.
        self._won = self._seen = 0.0
        # The next opening that no gains pay for: not before `passed` is so much, and the wait of the one before it.
        self._until, self._wait = 0.0, 1

    def exclude(self, seconds: float) -> None:
        """Note that so much of what the bank lost was an opening, not drafting."""
        self._seen -= seconds

    def take(self, price: float) -> bool:
        """Whether one that takes `price` seconds is tried now; counts it as tried."""
        gains = self._bank.saved - self._bank.lost
        self._won = min(max(self._won + gains - self._seen, 0.0), _LONGEST * price)
        self._seen = gains
        if self._won >= price:
            self._won, self._wait = self._won - price, 1
            return True
        if self.passed < self._until:
            return False
        self._wait = min(2 * self._wait, _LONGEST)
        self._until = self.passed + self._wait * price
        return True


class _Usual:
    """The mean of times without the first one, which includes reading what all texts share."""

    def __init__(self) -> None:
        self._means, self._begun = Means(), False

    @property
    def seconds(self) -> float:
        return self._means.seconds

    def add(self, seconds: float) -> bool:
        """Whether it counted."""
        if self._begun:
            self._means.add(seconds, 0.0, 0.0)
            return True
        self._begun = True
        return False


class Deferred(Wrapped):
    """The drafters that `make` creates, from the call on at which the savings pay for it; names: theirs."""

    def __init__(self, make: Callable[[], Drafter], openings: Openings, names: Sequence[str] = ()) -> None:
        super().__init__(Off(BANK, TEXTS[BANK]))
        self._make, self._openings, self._names = make, openings, names
        self._kept: Drafter | None = None  # those of earlier texts, while they are closed
        # The calls without drafters, and the length of the text at the last look at the savings.
        self._closed = self._length = 0
        self.opened = self._proposed = False
        if openings.take():
            self._open()

    def _open(self) -> None:
        if self._kept is not None:
            self.drafter, self.opened, self._kept = self._kept, True, None
            return
        watch = OwnTime()
        self.drafter, self.opened = self._make(), True
        self._openings.add_created(watch.seconds())

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Proposal:
        if not self.opened:
            self._save(context)
            if not (self._openings.take() if self._kept is None else self._openings.paid):
                return Draft(why=TEXTS[BANK], rest=_REST, unseen=True)
            self._open()
        watch = OwnTime()
        proposal = self.drafter.propose(context, nodes, min_path_prob)
        if not self._proposed:
            self._proposed = True
            self._openings.add_proposed(watch.seconds())
        return proposal

    def _save(self, context: Context) -> None:
        """Save a part of the time since the last look."""
        length, bank = len(context.ids), self._openings.bank
        tokens = context.generated_after(self._length) if self._length else 0
        self._closed, self._length = self._closed + tokens, length
        self._openings.save(bank.rate * tokens * bank.call / (context.concurrent + 1))

    def end(self, context: Context) -> None:
        if not self.opened:
            self._save(context)
        super().end(context)

    def reset(self) -> None:
        self._length = 0
        super().reset()
        if self.opened and self._openings.bank.left < 0:
            self._kept, self.drafter, self.opened = self.drafter, Off(BANK, TEXTS[BANK]), False

    def state(self) -> State:
        return self._now().state()

    def own_state(self) -> State:
        return self._now().own_state()

    def restore(self, state: State) -> None:
        self._now().restore(state)

    def inherit(self, other: Drafter) -> None:
        if isinstance(other, Deferred) and other.opened:
            self._now().inherit(other.drafter)

    def _now(self) -> Drafter:
        """The drafters, opened whatever it costs."""
        if not self.opened:
            self._open()
        return self.drafter

    def report(self) -> dict[str, Any]:
        found = (self._kept or self.drafter).report()
        if not (self.opened or self._kept):
            none = {"proposed": 0, "accepted": 0, "seconds": 0.0, "state": UNOPENED, "asked": 0, "wait": 0}
            return found | {"drafters": dict.fromkeys(self._names, none)}
        if not self._closed:
            return found
        calls = Counter(found["calls"]) + Counter({BANK: self._closed})
        return found | {"silent": found["silent"] + self._closed, "calls": dict(calls)}
