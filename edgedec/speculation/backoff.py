"""The statistics of one drafter under the governor: its calibration, its times, and its backoff."""

from __future__ import annotations

from typing import Any

from edgedec.decoding.draft import Drafter
from edgedec.speculation.costs import Costs
from edgedec.speculation.selection import SURE, chain_length
from edgedec.trees.calibration import Calibration

# A drafter whose gain is below its time is backed off for _FIRST calls, doubling up to _LONGEST, and then tried again;
# it is judged after _TRIAL proposals. SMOOTH: the rate of running means.
_FIRST, _LONGEST, _TRIAL, SMOOTH = 16, 256, 8, 0.05
# Proposals until a cheap drafter is judged: more, because its first proposals may only have been tested, not run.
_CHEAP_TRIAL = 32
# A proposal's time is capped at this multiple of the mean: more means that another program had the core.
_SPIKE = 4.0
# An expensive drafter has separate statistics by the tokens expected of the drafters before it: up to 0.5, up to 1.5,
# and more.
STEPS = (0.5, 1.5)
# Drafts until a length that does not pay is tried again; the upper limit of the acceptance rate.
_RETRY, _MOST_RATE = 64, 0.97


class DrafterStats:
    """One drafter and its statistics. Times are in seconds per proposal."""

    def __init__(self, name: str, drafter: Drafter, calibration: Calibration | None = None) -> None:
        self.name, self.drafter = name, drafter
        self.calibration = calibration or Calibration()
        # The acceptance rate of drawn tokens; it sets how many are drawn, because a drawn draft is not cut.
        self.draws, self.drawn_rate, self._drawings = False, SURE, 0
        self.proposals = self.proposed = self.accepted = 0
        self.seconds = self.propose_s = self.observe_s = 0.0
        # One for each level of `STEPS`.
        self._backoffs = [Backoff() for _ in range(len(STEPS) + 1)]
        self._used: Backoff | None = None
        # Whether its time matters, and whether it observed the last call.
        self.expensive, self.observed = False, True
        # Whether it cannot pay even with perfect guesses, and the seconds of its last proposal.
        self.hopeless, self.last_s = False, 0.0

    @property
    def backed_off(self) -> bool:
        """True if the drafter is backed off whatever the others propose. It resumes observing one call early."""
        return all(backoff.left > 1 for backoff in self._backoffs[: None if self.expensive else 1])

    @property
    def used(self) -> bool:
        """Whether it was used for the last proposal."""
        return self._used is not None

    def drafts(self, level: int) -> bool:
        """Whether it is used for this proposal; level: the range of `STEPS` with the tokens expected of the others."""
        backoff = self._backoffs[level]
        if backoff.left:
            backoff.left -= 1
            return self.skip()
        self._used = backoff
        return True

    def skip(self) -> bool:
        """Leave it out of this proposal; always False."""
        self._used = None
        return False

    def add_proposal(self, seconds: float) -> None:
        """Add a proposal's time. The first one is not counted in the mean, because it opens what the drafter needs."""
        if self.proposals >= _TRIAL:
            seconds = min(seconds, _SPIKE * self.propose_s)
        self.seconds += seconds
        self.proposals += 1
        self.last_s = seconds
        if self.proposals > 1:
            self.propose_s += (seconds - self.propose_s) * max(SMOOTH, 1 / (self.proposals - 1))

    def add_observation(self, seconds: float) -> None:
        """Add the time of learning from a call."""
        usual = self.observe_s
        self.observe_s += ((min(seconds, _SPIKE * usual) if usual else seconds) - usual) * (SMOOTH if usual else 1.0)

    def add_gain(self, seconds: float, free: float) -> None:
        """Add the last proposal's gain over the other drafters; `free` seconds of its own time are not counted."""
        if self._used is not None:
            trial = _TRIAL if self.expensive else _CHEAP_TRIAL
            self._used.add(seconds, self.propose_s + self.observe_s - free, trial)

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
        self.drawn_rate += (rate - self.drawn_rate) * SMOOTH

    def report(self) -> dict[str, Any]:
        """Figures for display, as JSON values."""
        own = {"proposed": self.proposed, "accepted": self.accepted, "seconds": self.seconds}
        return own | self.drafter.report()

    def restart(self) -> None:
        """Prepare for another text, for which other drafters may pay: end all backoffs."""
        self.observed = True
        for backoff in self._backoffs:
            backoff.restart()


class Backoff:
    """A drafter's mean gain per proposal in one kind of situation, and the number of further calls for which it is not
    used there (`left`)."""

    def __init__(self) -> None:
        self.gain, self.left = 0.0, 0
        self._calls, self._tried = _FIRST, 0

    def add(self, seconds: float, cost: float, trial: int = _TRIAL) -> None:
        """Add a proposal's gain and cost in seconds; the drafter is judged after `trial` proposals."""
        self._tried += 1
        self.gain += (seconds - self.gain) * max(SMOOTH, 1 / self._tried)
        if self._tried >= trial and self.gain < cost:
            self.left, self._tried = self._calls, trial - 2
            self._calls = min(2 * self._calls, _LONGEST)
        elif self._tried > 4 * trial:
            self._calls = _FIRST

    def restart(self) -> None:
        self.left, self._calls = 0, _FIRST
