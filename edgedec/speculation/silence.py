"""Calls in which nothing is drafted, observed or reckoned: what silence costs must be far below the allowance."""

from __future__ import annotations

from edgedec.speculation.budget import ALLOWANCE, Budget

# The most calls before the budget is looked at, and after how many the cost of a call is noted.
_LONGEST, _NOTED = 64, 8


class Silence:
    """`calls`: of all silences; `passed`: of this one."""

    def __init__(self) -> None:
        self.calls = self.passed = 0
        self._length, self._token = 0, 0.0

    def begin(self, budget: Budget, token: float) -> None:
        """Until the budget has what it lacks, at the longest; a token is worth so many seconds."""
        lacks = max(-budget.left, 0.0) / (ALLOWANCE * token) if token else 0.0
        self.passed, self._length, self._token = 0, int(min(lacks, _LONGEST - 1)) + 1, token

    def add(self) -> bool:
        """One more call; is the cost of this one to be noted?"""
        self.calls += 1
        self.passed += 1
        return self.passed % _NOTED == 0

    def over(self, budget: Budget) -> bool:
        """Has the budget something left? If not, it begins anew."""
        if self.passed < self._length:
            return False
        budget.add_call(self._token, self.passed, 0.0)
        self.begin(budget, self._token)
        return budget.left > 0
