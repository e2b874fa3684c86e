"""What drafts bring that silence found, and how long it rests where they lose.

A look says that guesses would pay; whether they do is seen when they were drafted: a text that quotes a few words now
and then looks like a copy at each of them. Where the last finds lost on the whole nothing is looked for during some
calls, twice as many each time, from text to text: the sessions of a runtime share what was found out, so that no new
text begins by losing again. A long run of repeated tokens (`following`) still wakes it.
"""

from __future__ import annotations

# What a find's draft takes, at first; how fast the mean follows; one counts for so many usual ones at most.
_TAKES, _RISES, _FALLS, _SPIKE = 6e-5, 0.1, 0.25, 4.0
# How often a look soon after a find finds something, before any did.
_AGAIN = 0.5
# Finds until they are judged, and how fast their mean gain follows; the first rest and the longest, in calls; so many
# finds that gained make the next rest a first one.
_TRIAL, _SMOOTH = 8, 0.15
_FIRST, _LONGEST, _GOOD = 64, 8192, 12


class Finds:
    """`takes`: mean seconds of the drafters' time for a find; `gain`: that a find gained; it begins at nothing, so one
    alone is no judgement."""

    def __init__(self) -> None:
        self.takes, self._again = _TAKES, _AGAIN
        self.gain, self.rest = 0.0, _FIRST
        self._seen = self._gained = 0

    @property
    def worth(self) -> float:
        """Seconds that another look soon after a find brings."""
        return self._again * self.gain

    def looked_again(self, found: bool) -> None:
        """A look soon after a find found something, or nothing."""
        self._again += _SMOOTH * (found - self._again)

    def add(self, takes: float, gain: float) -> int:
        """One more took so much of the drafters' time, and gained so much on the whole; returns for how many calls to
        look for none."""
        self.takes += (min(takes, _SPIKE * self.takes) - self.takes) * (_RISES if takes > self.takes else _FALLS)
        self._seen += 1
        self._gained = self._gained + 1 if gain > 0 else 0
        self.gain += (gain - self.gain) * max(_SMOOTH, 1 / (self._seen + 1))
        if self._gained >= _GOOD:
            self.rest = _FIRST
        if self._seen < _TRIAL or self.gain >= 0:
            return 0
        rest, self._seen = self.rest, _TRIAL - 2
        self.rest = min(2 * rest, _LONGEST)
        return rest
