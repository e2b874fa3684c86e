"""The budget of drafting: seconds that it may still lose, so that no text is ever much slower than without.

Each token adds a small share of what it costs without drafts; a draft adds the time that it saved and takes what it
cost. While nothing is left, only what is sure to pay is drafted. The balance goes on from text to text, debts too, and
the sessions of a server share one: many short texts lose no more than one long one.
"""

from __future__ import annotations

# The share of plain decoding that may be lost; the most that is saved up, and what there is at the start, both in calls
# of one row.
ALLOWANCE, SAVINGS, START = 0.008, 3.0, 1.0


class Budget:
    """`left`: seconds. `saved`, `lost`: what drafts brought and cost so far, drafters' own time among it; `forced`:
    tokens that a constraint forced, which are no saving of guesses."""

    def __init__(self) -> None:
        self.left = 0.0
        self.saved = self.lost = 0.0
        self.forced = 0
        self._started = False

    def start(self, call: float) -> None:
        """A call of one row takes so many seconds. Only the first start counts."""
        if not self._started:
            self.left, self._started = START * call, True

    def add_call(self, plain: float, tokens: int, spent: float) -> None:
        """A call gave so many tokens, each worth `plain` seconds; drafters took `spent`."""
        self.left = min(self.left + ALLOWANCE * plain * tokens - spent, SAVINGS * plain)
        self.lost += spent

    def add_draft(self, saved: float, cost: float, most: float) -> None:
        """A draft saved calls of so many seconds, and its rows cost so much; no more than `most` is saved up."""
        self.left = min(self.left + saved - cost, most)
        self.saved += saved
        self.lost += cost

    def add_forced(self, tokens: int) -> None:
        """Tokens were accepted that a constraint had forced."""
        self.forced += tokens
