"""One choice for each of several things, at the least cost within a budget."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

import numpy as np
from numpy.typing import NDArray

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


def choose_each(costs: Sequence[Sequence[float]], sizes: Sequence[int], budget: int) -> list[int]:
    """As `choose`, exactly, of things with the same sizes [j], ascending: every choice but the first is made at least
    once; ValueError if the budget does not allow that.

    >>> choose_each([[5, 1, 0], [4, 3, 1], [9, 8, 7]], [2, 3, 4], 9)
    [1, 2, 0]
    """
    unit = gcd(*(size - sizes[0] for size in sizes)) or 1
    places = [(size - sizes[0]) // unit for size in sizes]
    cells = min((budget - len(costs) * sizes[0]) // unit, len(costs) * places[-1])
    if cells < sum(places) or len(costs) < len(sizes) - 1:
        raise ValueError(f"one of each larger choice, and the smallest for the rest, exceed {budget}")
    made = [0] + [1 << j for j in range(len(sizes) - 1)]  # by bit, which choices there are
    best, taken = np.full((1 << (len(sizes) - 1), cells + 1), np.inf), list[NDArray[np.int64]]()
    best[0] = 0
    for cost in costs:
        grown, came = np.full_like(best, np.inf), np.zeros((*best.shape, 2), np.int64)
        for j, value in enumerate(cost):
            for before in range(len(best)):
                after, moved = before | made[j], np.full(cells + 1, np.inf)
                moved[places[j] :] = best[before, : cells + 1 - places[j]] + value
                better = moved < grown[after]
                grown[after] = np.where(better, moved, grown[after])
                came[after, better] = j, before
        best, taken = grown, [*taken, came]
    at, state, found = cells, len(best) - 1, list[int]()
    for came in reversed(taken):
        choice, state = (int(part) for part in came[state, at])
        found.append(choice)
        at -= places[choice]
    return found[::-1]
