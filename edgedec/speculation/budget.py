"""The budget of drafting: the seconds that it may still lose, so that no text is much slower than without drafts.

Each token adds a small share of its cost without drafts; a draft adds the time that it saved and subtracts its cost.
While the balance is empty, only drafts that are almost sure to pay run. The balance, debts included, carries over from
text to text, and the sessions of a server share it: many short texts lose no more than one long text."""

from __future__ import annotations

# The share of plain decoding time that may be lost; the largest balance and the initial balance, both in calls without
# drafts.
ALLOWANCE, SAVINGS, START = 0.008, 3.0, 1.0
# The factor on chances while the balance is empty, and when the debt exceeds a call.
_CAREFUL, _SURE = 0.9, 2 / 3
# The decay per call of the guess statistics, and the number of prior guesses that count as good as expected.
_KEEP, _GOOD = 0.99, 4.0


class Budget:
    """`left`: the balance in seconds. `saved`, `lost`: seconds that drafts saved and cost so far, drafters' own time
    included; `forced`: accepted tokens that a constraint forced, which count as no saving of guesses."""

    def __init__(self) -> None:
        self.left = 0.0
        self.saved = self.lost = 0.0
        self.forced = 0
        self._started, self._call = False, 0.0
        self._expected = self._accepted = 0.0

    def start(self, call: float) -> None:
        """Set the seconds of a call without drafts; the first call also sets the initial balance."""
        self._call = call
        if not self._started:
            self.left, self._started = START * call, True

    def lacks(self, needed: float, token: float) -> bool:
        """Whether the balance is too small for another proposal, which takes `needed` seconds. A proposal that is
        negligible against a token, which costs `token` seconds without drafts, is always affordable."""
        return self.left <= needed and needed > ALLOWANCE * token

    def add_call(self, plain: float, tokens: int, spent: float) -> None:
        """Add a call with `tokens` tokens, each worth `plain` seconds; drafters took `spent` seconds."""
        self.left = min(self.left + ALLOWANCE * plain * tokens - spent, SAVINGS * self._call)
        self.lost += spent

    def add_silence(self, plain: float, calls: int) -> None:
        """Add calls without drafts, of one token each; the statistics of earlier guesses decay."""
        self.add_call(plain, calls, 0.0)
        self._forget(calls)

    def add_draft(self, saved: float, cost: float) -> None:
        """Add a draft that saved `saved` seconds of calls and whose rows cost `cost` seconds."""
        self.left = min(self.left + saved - cost, SAVINGS * self._call)
        self.saved += saved
        self.lost += cost

    def add_guesses(self, expected: float, accepted: int) -> None:
        """Add the expected and the actual number of accepted guesses of a call."""
        self._forget(1)
        self._expected += expected
        self._accepted += accepted

    def _forget(self, calls: int) -> None:
        self._expected *= _KEEP**calls
        self._accepted *= _KEEP**calls

    @property
    def trust(self) -> float:
        """The factor on chances: lower if fewer guesses are accepted than expected, and lower while the balance is
        empty."""
        brought = min(1.0, (self._accepted + _GOOD) / (self._expected + _GOOD))
        if self.left > 0:
            return brought
        return brought * (_CAREFUL if self.left > -self._call else _SURE)

    def add_forced(self, tokens: int) -> None:
        """Count accepted tokens that a constraint forced."""
        self.forced += tokens
