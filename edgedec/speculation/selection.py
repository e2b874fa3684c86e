"""The largest draft that can pay, by the cost of calls. `edgedec.decoding.allocation` decides how much of a draft runs,
for all sequences of a call."""

from __future__ import annotations

from edgedec.speculation.costs import Costs

# The chance that every guess is assumed to have when the largest useful tree is computed.
SURE = 0.98
# The most nodes of a proposal, and the least chance of a path.
_MOST, _LEAST = 64, 0.005
# It is recomputed after so many calls, or when the number of sequences changes by this share.
_AGAIN, _CHANGED = 256, 0.1


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
    """`limit`: the most tokens of a proposal; `least`: the least chance of a path. Recomputed at intervals, when the
    number of sequences changes, and when more costs are known."""

    def __init__(self, fixed: int) -> None:
        self.limit, self.least, self._fixed = fixed, 0.0, fixed > 0
        self._calls = self._sequences = self._known = 0

    def update(self, costs: Costs, sequences: int) -> bool:
        """Count a call; returns whether the limits were recomputed."""
        self._calls += 1
        changed = abs(sequences - self._sequences) > _CHANGED * self._sequences or costs.known != self._known
        if self._fixed or not (changed or self._calls % _AGAIN == 1):
            return False
        self._sequences, self._known = sequences, costs.known
        self.limit, self.least = useful(costs, sequences)
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
