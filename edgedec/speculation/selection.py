"""How far it is worth drafting at all, by the cost of calls. How much of a draft runs is decided in
`edgedec.decoding.allocation`, for all sequences of a call."""

from __future__ import annotations

from edgedec.speculation.costs import Costs

# The highest chance that any guess is given when the largest useful tree is worked out.
SURE = 0.98
# The most nodes that are ever asked for, and the least chance of a path.
_MOST, _LEAST = 64, 0.005


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


def useful(costs: Costs, rows: int = 1) -> tuple[int, float]:
    """The most drafted tokens that could ever pay here, and the chance of a path below which none does."""
    limit = chain_length(SURE, costs, rows)
    if not limit:
        return 0, 1.0
    # By what a row adds on the best stretch of the curve; half of it, as claims are yet to be calibrated.
    seconds = costs.seconds
    cheapest = min((seconds[rows + n] - seconds[rows]) / n for n in range(1, limit + 1))
    return limit, max(_LEAST, cheapest * rows / seconds[rows] / 2)
