"""What a drafter's proposals took and brought: in one text, and in all texts of a runtime."""

from __future__ import annotations

from dataclasses import dataclass

# Proposals until a drafter is judged; the first wait of one that does not pay, in calls; the rate of running means; the
# cap of a time in multiples of the mean: more is another program's.
TRIAL, FIRST, SMOOTH, _SPIKE = 8, 16, 0.1, 4.0


@dataclass
class Means:
    """Running means of proposals: their `seconds`, the `tokens` that they are expected to add, the `rows` that ran.
    `n`: how many proposals there were."""

    seconds: float = 0.0
    tokens: float = 0.0
    rows: float = 0.0
    n: int = 0

    def add(self, seconds: float, tokens: float, rows: float, smooth: float = SMOOTH) -> None:
        """Add a proposal. The first time counts until the second is known: it includes opening what is needed."""
        self.n += 1
        if self.n == 2:
            self.seconds = min(self.seconds, seconds)
        elif self.n > TRIAL:
            seconds = min(seconds, _SPIKE * self.seconds)
        rate = max(smooth, 1 / self.n)
        self.seconds += (seconds - self.seconds) * rate
        self.tokens += (tokens - self.tokens) * rate
        self.rows += (rows - self.rows) * rate


@dataclass
class Experience(Means):
    """What a drafter did in all texts of a thread. `calls`: of all these texts; `until`: no text that does not know
    better tries it before so many; `wait`: the next such wait."""

    calls: int = 0
    until: int = 0
    wait: int = FIRST

    @classmethod
    def known(cls, seconds: float, tokens: float, rows: float) -> Experience:
        """That of an earlier process."""
        return cls(seconds, tokens, rows, TRIAL)
