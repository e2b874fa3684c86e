"""The budget of drafting: seconds that it may still lose, so that no text is ever much slower than without.

Each token adds a small share of what it costs without drafts; a draft adds the time that it saved and takes what it
cost. While nothing is left, only what is sure to pay is drafted. The balance goes on from text to text, debts too, and
the sessions of a server share one: many short texts lose no more than one long one.
"""

from __future__ import annotations

# The share of plain decoding that may be lost; the most that is saved up, and what there is at the start, both in calls
# without drafts.
ALLOWANCE, SAVINGS, START = 0.008, 3.0, 1.0
# What a chance counts for while nothing is left, and when more than a call is owed.
_CAREFUL, _SURE = 0.9, 2 / 3
# How much of the past counts at each call in what guesses brought; and so many guesses were as good as expected before.
_KEEP, _GOOD = 0.99, 4.0


class Budget:
    """`left`: seconds. `saved`, `lost`: what drafts brought and cost so far, drafters' own time among it; `forced`:
    tokens that a constraint forced, which are no saving of guesses."""

    def __init__(self) -> None:
        self.left = 0.0
        self.saved = self.lost = 0.0
        self.forced = 0
        self._started, self._call = False, 0.0
        self._expected = self._accepted = 0.0

    def start(self, call: float) -> None:
        """A call without drafts takes so many seconds. Only the first start counts."""
        self._call = call
        if not self._started:
            self.left, self._started = START * call, True

    def lacks(self, needed: float, token: float) -> bool:
        """Is too little left for another proposal, which takes `needed`? Not if that is next to nothing beside a token,
        which costs so much without drafts."""
        return self.left <= needed and needed > ALLOWANCE * token

    def add_call(self, plain: float, tokens: int, spent: float) -> None:
        """A call gave so many tokens, each worth `plain` seconds; drafters took `spent`."""
        self.left = min(self.left + ALLOWANCE * plain * tokens - spent, SAVINGS * self._call)
        self.lost += spent

    def add_silence(self, plain: float, calls: int) -> None:
        """So many calls without drafts gave a token each: what guesses brought before them counts for less."""
        self.add_call(plain, calls, 0.0)
        self._forget(calls)

    def add_draft(self, saved: float, cost: float) -> None:
        """A draft saved calls of so many seconds, and its rows cost so much."""
        self.left = min(self.left + saved - cost, SAVINGS * self._call)
        self.saved += saved
        self.lost += cost

    def add_guesses(self, expected: float, accepted: int) -> None:
        """So many guesses of a call were expected to be accepted, and so many were."""
        self._forget(1)
        self._expected += expected
        self._accepted += accepted

    def _forget(self, calls: int) -> None:
        self._expected *= _KEEP**calls
        self._accepted *= _KEEP**calls

    @property
    def trust(self) -> float:
        """What a chance counts for: less where guesses bring less than was expected, and less while nothing is left."""
        brought = min(1.0, (self._accepted + _GOOD) / (self._expected + _GOOD))
        if self.left > 0:
            return brought
        return brought * (_CAREFUL if self.left > -self._call else _SURE)

    def add_forced(self, tokens: int) -> None:
        """Tokens were accepted that a constraint had forced."""
        self.forced += tokens
