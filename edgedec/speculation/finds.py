"""The gains of drafts that checks during silence found ("finds"), and the pause after finds that lost.

A check predicts that guesses would pay; their draft shows whether they do: a text that quotes a few words now and then
resembles a copy at each of them. After finds with a net loss the checks pause for some calls, twice as many each time.
The sessions of a runtime share these statistics, so that a new text does not repeat the loss. A long run of repeated
tokens (`following`) ends the pause."""

from __future__ import annotations

# The initial seconds of a find's draft; the rates of the mean when it rises and falls; the cap in multiples of the
# mean.
_TAKES, _RISES, _FALLS, _SPIKE = 6e-5, 0.1, 0.25, 4.0
# The initial hit rate of checks soon after a find.
_AGAIN = 0.5
# Finds until they are judged, and the rate of their mean gain; the first and the longest pause, in calls; after _GOOD
# finds in a row that gained, the next pause is a first one.
_TRIAL, _SMOOTH = 8, 0.15
_FIRST, _LONGEST, _GOOD = 64, 8192, 12


class Finds:
    """`takes`: the drafters' mean seconds per find; `gain`: the mean gain of a find in seconds; its prior is 0, so that
    one find alone decides little."""

    def __init__(self) -> None:
        self.takes, self._again = _TAKES, _AGAIN
        self.gain, self.rest = 0.0, _FIRST
        self._seen = self._gained = 0

    @property
    def worth(self) -> float:
        """The expected gain, in seconds, of another check soon after a find."""
        return self._again * self.gain

    def looked_again(self, found: bool) -> None:
        """Add the outcome of a check soon after a find."""
        self._again += _SMOOTH * (found - self._again)

    def add(self, takes: float, gain: float) -> int:
        """Add a find: the drafters' time and the net gain, in seconds; returns the number of calls without checks."""
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
