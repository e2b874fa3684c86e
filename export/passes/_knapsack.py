"""One choice for each of several things, at the least cost within a budget."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# Cells of the budget. A size is rounded up to whole cells, so that the choice never exceeds the budget.
_CELLS = 4096


def choose(costs: Sequence[Sequence[float]], sizes: Sequence[Sequence[int]], budget: int) -> list[int]:
    """costs[i][j], sizes[i][j] of choice j for thing i -> the choices with the least sum of costs whose sizes sum to at
    most `budget`; ValueError if even the smallest do not. Exact where sizes are whole cells (a 4096th of what is left
    after the smallest choice of each).

    >>> choose([[5, 1], [4, 3]], [[1, 3], [1, 2]], 4)
    [1, 0]
    """
    least = [min(of) for of in sizes]
    room = budget - sum(least)
    if room < 0:
        raise ValueError(f"the smallest choices take {sum(least)}, the budget is {budget}")
    unit = max(1.0, room / _CELLS)
    cells = int(room // unit)
    best, taken = np.zeros(cells + 1), []
    for cost, size, base in zip(costs, sizes, least, strict=True):
        places = [int(np.ceil((one - base) / unit)) for one in size]
        tried = np.full((len(cost), cells + 1), np.inf)
        for j, (place, value) in enumerate(zip(places, cost, strict=True)):
            if place <= cells:
                tried[j, place:] = best[: cells + 1 - place] + value
        taken.append((tried.argmin(axis=0), places))
        best = tried.min(axis=0)
    at, found = cells, list[int]()
    for choice, places in reversed(taken):
        found.append(int(choice[at]))
        at -= places[found[-1]]
    return found[::-1]
