"""What is known of one drafter under the governor: its calibration, its times, and whether it is backed off."""

from __future__ import annotations

from typing import Any

from edgedec.decoding.draft import Drafter
from edgedec.speculation.costs import Costs
from edgedec.speculation.selection import SURE, chain_length
from edgedec.trees.calibration import Calibration

# A drafter that does not gain its time is backed off for so many calls, twice as many each time, and then tried
# again; it is judged after so many proposals. How fast mean times follow.
_FIRST, _LONGEST, _TRIAL, SMOOTH = 16, 256, 8, 0.05
# One whose time is short is judged after more: until then it may only have been tested.
_CHEAP_TRIAL = 32
# One proposal counts for so many usual ones at most: whatever else took the core is no time of the drafter's.
_SPIKE = 4.0
# An expensive drafter is judged apart where the drafters before it let expect up to so many tokens, up to so many,
# and more.
STEPS = (0.5, 1.5)
# Drawings until a length that does not pay is tried again; no rate is taken to be higher.
_RETRY, _MOST_RATE = 64, 0.97


class DrafterStats:
    """One drafter and its statistics. Times are in seconds a proposal."""

    def __init__(self, name: str, drafter: Drafter, calibration: Calibration | None = None) -> None:
        self.name, self.drafter = name, drafter
        self.calibration = calibration or Calibration()
        # How often a drawn token is accepted: it sets how many are drawn, for what is drawn is not cut.
        self.draws, self.drawn_rate, self._drawings = False, SURE, 0
        self.proposals = self.proposed = self.accepted = 0
        self.seconds = self.propose_s = self.observe_s = 0.0
        # By how much was expected of the other drafters already.
        self._backoffs = [Backoff() for _ in range(len(STEPS) + 1)]
        self._used: Backoff | None = None
        # Does its time matter; and did it observe the last call?
        self.expensive, self.observed = False, True
        # Can it not pay, whatever comes true; and what did its last proposal take?
        self.hopeless, self.last_s = False, 0.0

    @property
    def backed_off(self) -> bool:
        """True if the drafter is backed off whatever the others propose. It resumes observing one call early."""
        return all(backoff.left > 1 for backoff in self._backoffs[: None if self.expensive else 1])

    @property
    def used(self) -> bool:
        """Was it used for the last proposal?"""
        return self._used is not None

    def drafts(self, level: int) -> bool:
        """Is it used for this proposal, `level` being how much the others let expect?"""
        backoff = self._backoffs[level]
        if backoff.left:
            backoff.left -= 1
            return self.skip()
        self._used = backoff
        return True

    def skip(self) -> bool:
        """It is not used for this proposal: False."""
        self._used = None
        return False

    def add_proposal(self, seconds: float) -> None:
        """One more proposal, which took so long. The first one says nothing of the next: it opens what the drafter
        needs."""
        if self.proposals >= _TRIAL:
            seconds = min(seconds, _SPIKE * self.propose_s)
        self.seconds += seconds
        self.proposals += 1
        self.last_s = seconds
        if self.proposals > 1:
            self.propose_s += (seconds - self.propose_s) * max(SMOOTH, 1 / (self.proposals - 1))

    def add_observation(self, seconds: float) -> None:
        """Learning from a call took so long."""
        usual = self.observe_s
        self.observe_s += ((min(seconds, _SPIKE * usual) if usual else seconds) - usual) * (SMOOTH if usual else 1.0)

    def add_gain(self, seconds: float, free: float) -> None:
        """The last proposal gained so much that no other drafter's did; `free` seconds of its own time are not
        counted."""
        if self._used is not None:
            trial = _TRIAL if self.expensive else _CHEAP_TRIAL
            self._used.add(seconds, self.propose_s + self.observe_s - free, trial)

    def drawn_length(self, costs: Costs, rows: int) -> int:
        """How many tokens to draw beside so many rows; now and then more than pay by its rate, which may have risen."""
        self._drawings += 1
        if self.drawn_rate >= SURE or self._drawings % _RETRY == 0:
            return _RETRY
        return chain_length(self.drawn_rate, costs, rows)

    def add_drawn(self, drawn: int, accepted: int) -> None:
        """So many of the tokens that it drew were accepted."""
        self.proposed += drawn
        self.accepted += accepted
        rate = min(accepted / min(drawn, accepted + 1), _MOST_RATE)
        self.drawn_rate += (rate - self.drawn_rate) * SMOOTH

    def report(self) -> dict[str, Any]:
        """For people, fit for JSON."""
        own = {"proposed": self.proposed, "accepted": self.accepted, "seconds": self.seconds}
        return own | self.drafter.report()

    def restart(self) -> None:
        """Another text: what did not pay for the last one may for this."""
        self.observed = True
        for backoff in self._backoffs:
            backoff.restart()


class Backoff:
    """What a drafter gains a proposal in one kind of situation, and for how many more calls it is not used in it
    (`left`)."""

    def __init__(self) -> None:
        self.gain, self.left = 0.0, 0
        self._calls, self._tried = _FIRST, 0

    def add(self, seconds: float, cost: float, trial: int = _TRIAL) -> None:
        """One more proposal gained `seconds` and cost `cost`; it is judged after `trial` of them."""
        self._tried += 1
        self.gain += (seconds - self.gain) * max(SMOOTH, 1 / self._tried)
        if self._tried >= trial and self.gain < cost:
            self.left, self._tried = self._calls, trial - 2
            self._calls = min(2 * self._calls, _LONGEST)
        elif self._tried > 4 * trial:
            self._calls = _FIRST

    def restart(self) -> None:
        self.left, self._calls = 0, _FIRST
