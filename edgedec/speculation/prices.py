"""What a token is worth and what a drafted row costs, in a call with the other sequences, by the cost model.

token = seconds(sequences, context) / sequences + the time between calls
k rows = seconds(sequences + k, context) - seconds(sequences, context)

Where no further texts come, as at the end of a batch, a token that a text gets sooner only makes the call smaller in
which the text ends: with k texts that end later

token = seconds(k + 1, context) - seconds(k, context) + the time between calls

So the text that ends last is worth most, and one that is ahead of the others little.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from edgedec.decoding.allocation import READING
from edgedec.decoding.context import NEVER, Ends
from edgedec.decoding.host_time import BetweenCalls
from edgedec.speculation.costs import Costs

# The chance that every guess is assumed to have when the largest useful tree is computed.
SURE = 0.98
# The most nodes of a proposal, and the least chance of a path.
_MOST, _LEAST = 64, 0.005
# The limits are recomputed after so many calls, or when the number of sequences changes by this share.
_AGAIN, _CHANGED = 256, 0.1


class Prices(NamedTuple):
    """`token`: the seconds of a token without drafts; `call`: of a call of one row of every sequence; `added`: the
    seconds that k drafted rows of this sequence add to it, k from 0; `draft`: the seconds that a draft adds between
    calls, besides the drafters' own time; `sequences`: of the call; `each`: the attention of a drafted row to the text
    before it; `weight`: `token` relative to that of a text among others that are replaced when they end."""

    token: float
    call: float
    added: Sequence[float]
    draft: float
    sequences: int
    each: float
    weight: float = 1.0

    @classmethod
    def of(
        cls, costs: Costs, between: BetweenCalls, sequences: int, context: int, reading: int = 0, ends: Ends = NEVER
    ) -> Prices:
        """In a call of `sequences` sequences after `context` tokens each; reading: the rows of a prompt in it."""
        seconds, cell, last = costs.seconds, costs.per_cell * context, len(costs.seconds) - 1
        rows, each = min(sequences + reading, last), (1 - READING) * cell
        added = [after - seconds[rows] + n * each for n, after in enumerate(seconds[rows : rows + _MOST + 1])]
        call = seconds[min(sequences, last)] + cell * sequences
        mean = token = call / sequences + between.plain
        if ends.ties:
            after = seconds[min(ends.after, last)] if ends.after else 0.0
            token = (seconds[min(ends.after + ends.ties, last)] - after) / ends.ties + cell + between.plain
        return cls(token, call, added, between.draft, sequences, each, token / mean)

    @property
    def row(self) -> float:
        """The seconds that the smallest draft adds."""
        return self.added[min(1, len(self.added) - 1)] + self.draft

    def of_rows(self, rows: float) -> float:
        """The seconds that so many drafted rows add."""
        last = len(self.added) - 1
        low = min(int(rows), last)
        high = min(low + 1, last)
        return self.added[low] + (rows - low) * (self.added[high] - self.added[low])

    def affordable(self, seconds: float) -> int:
        """The most rows that add no more than `seconds` with the time between calls."""
        rows = len(self.added) - 1
        while rows and self.added[rows] + self.draft > seconds:
            rows -= 1
        return rows


def chain_length(p: float, costs: Costs, rows: int = 1) -> int:
    """The best length of a chain whose tokens are each accepted with probability `p` if the one before is, in a call of
    `rows` sequences with one row each."""
    seconds = costs.seconds
    if rows >= len(seconds):
        return 0
    best, length, tokens, path = rows / seconds[rows], 0, float(rows), 1.0
    for n in range(1, min(_MOST, len(seconds) - 1 - rows) + 1):
        path *= p
        tokens += path
        if tokens / seconds[rows + n] > best:
            best, length = tokens / seconds[rows + n], n
    return length


class UsefulRows:
    """`limit`: the most drafted tokens that could pay on this host; `least`: the chance of a path below which no node
    pays. Recomputed at intervals, when the number of sequences changes, and when more costs are known."""

    def __init__(self) -> None:
        self.limit, self.least = 0, 0.0
        self._calls = self._sequences = self._known = 0

    def update(self, costs: Costs, sequences: int, pause: float = 0.0) -> bool:
        """Count a call; returns whether the limits were recomputed. pause: see `Gaps`; a text has its share of it."""
        self._calls += 1
        changed = abs(sequences - self._sequences) > _CHANGED * self._sequences or costs.known != self._known
        if not (changed or self._calls % _AGAIN == 1):
            return False
        self._sequences, self._known = sequences, costs.known
        self.limit, self.least = useful(costs, sequences)
        if pause and sequences > 1 and self.limit:
            call = costs.seconds[sequences]
            latest = call + (call + pause) / sequences
            self.limit = bisect_right(costs.seconds, latest, sequences, sequences + self.limit + 1) - sequences - 1
        return True


def useful(costs: Costs, rows: int = 1) -> tuple[int, float]:
    """The most drafted tokens that could pay on this host, and the chance of a path below which no node pays."""
    limit = chain_length(SURE, costs, rows)
    if not limit:
        return 0, 1.0
    # By the cost of a row on the flattest part of the curve; half of it, as the probabilities are not calibrated yet.
    seconds = costs.seconds
    cheapest = min((seconds[rows + n] - seconds[rows]) / n for n in range(1, limit + 1))
    return limit, max(_LEAST, cheapest * rows / seconds[rows] / 2)
