"""How varied a text is, and how much of it was copied: measures of token lists, without torch."""

from collections.abc import Iterable, Sequence

import numpy as np


def grams(ids: Sequence[int], n: int) -> list[tuple[int, ...]]:
    """All runs of n tokens, in order. [1, 2, 1], 2: [(1, 2), (2, 1)]."""
    return [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]


def type_token_ratio(ids: Sequence[int], last: int = 96) -> float:
    """Different tokens among the last so many, as a share. [5, 5, 1, 2], last 3: 1; last 4: 3/4."""
    ids = ids[-last:]
    return len(set(ids)) / len(ids) if ids else 0.0


def distinct(texts: Iterable[Sequence[int]], n: int) -> float:
    """Different runs of n tokens of each text, as a share; the mean over texts. [1, 1, 1, 2], n 2: 2/3."""
    found = [grams(ids, n) for ids in texts]
    return float(np.mean([len(set(runs)) / len(runs) for runs in found if runs] or [0.0]))


def copied(texts: Iterable[Sequence[int]], known: Iterable[Sequence[int]], n: int) -> float:
    """The share of all runs of n tokens that stand in a known text. [1, 2, 3] of [[2, 3]], n 2: 1/2."""
    read = {run for ids in known for run in grams(ids, n)}
    runs = [run for ids in texts for run in grams(ids, n)]
    return sum(run in read for run in runs) / len(runs) if runs else 0.0
