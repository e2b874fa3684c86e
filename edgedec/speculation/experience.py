"""What a drafter's proposals took and brought: in one text, and in all texts of a runtime."""

from __future__ import annotations

from ctypes import Structure, c_double, c_int64

# Proposals until a drafter is judged; the first wait of one that does not pay, in calls; the rate of running means; the
# cap of a time in multiples of the mean: more is another program's.
TRIAL, FIRST, SMOOTH, _SPIKE = 8, 16, 0.1, 4.0


class Means(Structure):
    """Running means of proposals: their `seconds`, the `tokens` that they are expected to add, the `rows` that ran.
    `n`: how many proposals there were. In memory that the runtime's own governor reads and writes too, as are the other
    structures of this package."""

    seconds: float
    tokens: float
    rows: float
    n: int
    _fields_ = (("seconds", c_double), ("tokens", c_double), ("rows", c_double), ("n", c_int64))

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


class Experience(Means):
    """What a drafter did in all texts of a thread. `calls`: of all these texts; `until`: no text that does not know
    better tries it before so many; `wait`: the next such wait."""

    calls: int
    until: int
    wait: int
    _fields_ = (("calls", c_int64), ("until", c_int64), ("wait", c_int64))  # type: ignore[assignment]  # more fields

    def __init__(self, seconds: float = 0.0, tokens: float = 0.0, rows: float = 0.0, n: int = 0) -> None:
        super().__init__(seconds, tokens, rows, n)
        self.wait = FIRST

    @classmethod
    def known(cls, seconds: float, tokens: float, rows: float) -> Experience:
        """That of an earlier process."""
        return cls(seconds, tokens, rows, TRIAL)
