"""The budget of drafting: seconds that it may still lose, so that no text is ever much slower than without.

Each token adds a small share of what it costs without drafts; a draft adds the time that it saved and takes what it
cost. While nothing is left, only what is sure to pay is drafted.
"""

from __future__ import annotations

from edgedec.speculation.costs import Costs

# The share of plain decoding that may be lost; the most that is saved up, and what a new text starts with at most,
# both in calls of one row.
ALLOWANCE, _SAVINGS, _START = 0.008, 3.0, 1.0


class Budget:
    """`left`: seconds."""

    def __init__(self) -> None:
        self.left = 0.0

    def start(self, costs: Costs) -> None:
        self.left = _START * costs.seconds[1]

    def restart(self, costs: Costs) -> None:
        """Another text: debts are forgotten, and large savings too."""
        self.left = min(max(self.left, 0.0), _START * costs.seconds[1])

    def add_call(self, plain: float, tokens: int, spent: float) -> None:
        """A call gave so many tokens, each worth `plain` seconds; drafters took `spent`."""
        self.left += ALLOWANCE * plain * tokens - spent

    def add_draft(self, saved: float, cost: float) -> None:
        """A draft saved calls of so many seconds, and its rows cost so much."""
        self.left += saved - cost

    def limit(self, plain: float) -> None:
        self.left = min(self.left, _SAVINGS * plain)
