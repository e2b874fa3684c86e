"""How large a draft should be, by the cost model: the tree with the most tokens a second."""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.speculation.costs import Costs

# The highest chance that any guess is given when the largest useful tree is worked out.
SURE = 0.98


def best_size(chances: Sequence[float], costs: Costs, concurrent: int, least: float = 1.0) -> tuple[int, float]:
    """How many of the likeliest nodes to run, and the expected speed over plain decoding (1.0 for none).

    chances: of whole paths, descending; concurrent: other sequences in the call, taken as one row each; least: the
    speed that a draft must reach.

        maximise over n:  (1 + others + sum of the first n chances) / cost(n + 1 + others)
    """
    seconds = costs.seconds
    others = min(concurrent, len(seconds) - 2)
    tokens = 1.0 + others
    plain = tokens / seconds[1 + others]
    best, size = plain * least, 0
    for rows, chance in enumerate(chances[: len(seconds) - 2 - others], 2):
        tokens += chance
        rate = tokens / seconds[rows + others]
        if rate > best:
            best, size = rate, rows - 1
    return size, best / plain if size else 1.0


def chain_length(p: float, costs: Costs) -> int:
    """The best length of a chain each of whose tokens is accepted with this chance if the one before is."""
    seconds = costs.seconds
    best, length, tokens = 1 / seconds[1], 0, 1.0
    for rows in range(2, costs.most + 1):
        tokens += p ** (rows - 1)
        if tokens / seconds[rows] > best:
            best, length = tokens / seconds[rows], rows - 1
    return length


def useful(costs: Costs) -> tuple[int, float]:
    """The most drafted tokens that could ever pay here, and the chance of a path below which none does."""
    seconds, limit = costs.seconds, chain_length(SURE, costs)
    # By what a row adds on the best stretch of the curve; half of it, as claims are yet to be calibrated.
    cheapest = min(((seconds[rows] - seconds[1]) / (rows - 1) for rows in range(2, limit + 2)), default=0.0)
    return limit, max(0.005, cheapest / seconds[1] / 2)
