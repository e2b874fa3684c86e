"""Eviction in plain loops, for comparison with the policies: what a block holds, and what its slots were paid."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil

from numpy.typing import NDArray


class Held:
    """paid [heads, rows, slots], by positions; `at`: the positions that are held; `score`: what each was paid."""

    def __init__(self, paid: NDArray, heads: Iterable[int] | None = None) -> None:
        self.paid, self.at, self.score = paid, list[int](), dict[int, float]()
        self.heads = range(len(paid)) if heads is None else list(heads)

    def add(self, rows: Iterable[int]) -> None:
        for row in rows:
            self.at.append(row)
            self.score[row] = 0.0

    def look(self, rows: Iterable[int], width: int = 1) -> None:
        """Add what rows pay to the slots that are held, each the mean of its `width` neighbours."""
        rows = list(rows)
        sums = [sum(float(self.paid[h, row, slot]) for h in self.heads for row in rows) for slot in self.at]
        for slot, value in zip(self.at, smoothed(sums, width), strict=True):
            self.score[slot] += value

    def evict(self, keep: int, sinks: int, recent: int) -> list[int]:
        """Keep so many: the first `sinks`, the last `recent`, of the others the best paid; returns what goes."""
        if len(self.at) <= keep:
            return []
        sinks = min(sinks, keep)
        recent = min(recent, keep - sinks)
        first, last = self.at[:sinks], self.at[len(self.at) - recent :]
        others = self.at[sinks : len(self.at) - recent]
        best = sorted(others, key=lambda slot: (-self.score[slot], -slot))[: keep - sinks - recent]
        stay = sorted({*first, *last, *best}, key=self.at.index)
        gone, self.at = [slot for slot in self.at if slot not in stay], stay
        return gone

    def forget(self) -> None:
        self.score = dict.fromkeys(self.at, 0.0)


def smoothed(values: Sequence[float], width: int) -> list[float]:
    """Each value as the mean of those at most half the width away."""
    half, found = width // 2, []
    for i in range(len(values)):
        near = values[max(0, i - half) : i + half + 1]
        found.append(sum(near) / len(near))
    return found


def slots_of(budget: float, length: int) -> int:
    """A budget in slots: a share of the text up to 1, else a number; at least eight."""
    return max(8, ceil(budget * length) if budget <= 1 else int(budget))
