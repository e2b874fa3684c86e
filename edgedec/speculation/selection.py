"""How far it is worth drafting at all, by the cost of calls. How much of a draft runs is decided in
`edgedec.decoding.allocation`, for all sequences of a call."""

from __future__ import annotations

from edgedec.speculation.costs import Costs

# The highest chance that any guess is given when the largest useful tree is worked out.
SURE = 0.98
# The most nodes that are ever asked for, and the least chance of a path.
_MOST, _LEAST = 64, 0.005
# Calls until it is worked out again, and the share of sequences.
_AGAIN, _CHANGED = 256, 0.1


def chain_length(p: float, costs: Costs, rows: int = 1) -> int:
    """The best length of a chain each of whose tokens is accepted with this chance if the one before is, beside
    sequences of one row each; `rows`: of all of them."""
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
    """`limit`: the most tokens that are asked for at a call; `least`: the least chance of a path. Worked out again now
    and then: where sequences come or go by a share, and where the cost of more calls is known."""

    def __init__(self, fixed: int) -> None:
        self.limit, self.least, self._fixed = fixed, 0.0, fixed > 0
        self._calls = self._sequences = self._known = 0

    def update(self, costs: Costs, sequences: int) -> bool:
        """For one more call; were they worked out again?"""
        self._calls += 1
        changed = abs(sequences - self._sequences) > _CHANGED * self._sequences or costs.known != self._known
        if self._fixed or not (changed or self._calls % _AGAIN == 1):
            return False
        self._sequences, self._known = sequences, costs.known
        self.limit, self.least = useful(costs, sequences)
        return True


def useful(costs: Costs, rows: int = 1) -> tuple[int, float]:
    """The most drafted tokens that could ever pay here, and the chance of a path below which none does."""
    limit = chain_length(SURE, costs, rows)
    if not limit:
        return 0, 1.0
    # By what a row adds on the best stretch of the curve; half of it, as claims are yet to be calibrated.
    seconds = costs.seconds
    cheapest = min((seconds[rows + n] - seconds[rows]) / n for n in range(1, limit + 1))
    return limit, max(_LEAST, cheapest * rows / seconds[rows] / 2)
