"""Shared by verifiers of drawn drafts: their types, and the lookup of drawn tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from edgedec.cache.rows import Rows
from edgedec.sampling import Floats, Ids, Probs

Target = Callable[[int, list[int]], Probs]
# (rows, target(row, path), what each drafted token was drawn from, rng, root) -> (accepted rows, tokens picked)
Verifier = Callable[[Rows, Target, Sequence[Probs], np.random.Generator, int], tuple[list[int], list[int]]]


@dataclass(frozen=True)
class VerifierFacts:
    """bushy: places, from the first on, at which a draft for this verifier has several children; 0: it is a chain."""

    bushy: int = 0
    paper: str = ""


# Tokens drafted at one node, each with what it was drawn from
Drawn = list[tuple[int, Probs]]


def children_of(rows: Rows, root: int) -> dict[int, list[int]]:
    """The drafted rows by their parents."""
    below: dict[int, list[int]] = {}
    for row, parent in enumerate(rows.parents[root + 1 :].tolist(), root + 1):
        below.setdefault(parent, []).append(row)
    return below


def drawn_of(rows: Rows, some: Sequence[int], drafted: Sequence[Probs], root: int) -> list[tuple[int, int, Probs]]:
    """(row, token, distribution) of the siblings that were drawn. Siblings share one distribution."""
    if not some:
        return []
    q = drafted[some[0] - root - 1]
    found = [(row, int(rows.tokens[row]), q) for row in some]
    return [entry for entry in found if q.of(entry[1]) > 0]


def chances(q: Probs, ids: Ids) -> Floats:
    """The probabilities of `ids` [n] under q -> [n]."""
    at = np.minimum(np.searchsorted(q.ids, ids), len(q.ids) - 1)
    found: Floats = np.where(q.ids[at] == ids, q.p[at], 0.0)
    return found
