"""Draft trees of several drafters in one: merged by common prefix (RASD), and cut to the rows that pay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgedec.decoding.draft import Draft
from edgedec.trees.calibration import BINS, Calibration

Estimates = Sequence[float] | NDArray[np.float64]
_ROOT = -1
_UNKNOWN = 0.5  # the claim of a token without one


class MergedTree(Protocol):
    """The interface of several drafters' merged trees; the methods are documented in `TreeMerger`."""

    @property
    def tokens(self) -> Sequence[int]: ...
    @property
    def parents(self) -> Sequence[int]: ...
    @property
    def chances(self) -> Sequence[float]: ...
    @property
    def guesses(self) -> Sequence[Sequence[tuple[int, int]]]: ...
    def __len__(self) -> int: ...
    def add(self, number: int, draft: Draft, estimates: NDArray[np.float64]) -> list[int]: ...
    def best_first(self) -> list[int]: ...
    def best_chain(self) -> list[int]: ...
    def cut(self, nodes: Sequence[int], by: Sequence[str], why: str) -> Draft: ...
    def test(self, picked: Sequence[int], calibrations: Sequence[Calibration]) -> list[int]: ...


class TreeMerger:
    """Guesses below the last known token. Every node has its token, its parent, the chance that its whole path is
    accepted, and its guesses, each (drafter's number, kind of claim)."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.chances: list[float] = []
        self.guesses: list[list[tuple[int, int]]] = []
        self._p: list[float] = []
        self._below: dict[int, dict[int, int]] = {}

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, number: int, draft: Draft, estimates: Estimates) -> list[int]:
        """Merge the tree of drafter `number`, whose claims of each kind are worth `estimates`; returns the node of
        each of its tokens."""
        places: list[int] = []
        claims = draft.p or [_UNKNOWN] * len(draft.tokens)
        for token, parent, claim in zip(draft.tokens, draft.parents, claims, strict=True):
            above = _ROOT if parent < 0 else places[parent]
            kind = int(claim * BINS)
            kind = 0 if kind < 0 else BINS - 1 if kind >= BINS else kind
            p = float(estimates[kind])
            children = self._below.get(above)
            if children is None:
                children = self._below[above] = {}
            node = children.get(token)
            if node is None:
                node = children[token] = len(self.tokens)
                self.tokens.append(token)
                self.parents.append(above)
                self._p.append(p)
                self.guesses.append([(number, kind)])
            else:
                self.guesses[node].append((number, kind))
                if p > self._p[node]:
                    self._p[node] = p
            places.append(node)
        return places

    def best_first(self) -> list[int]:
        """Nodes by chance, parents before children. Sets `chances`."""
        chances: list[float] = []
        for parent, p in zip(self.parents, self._p, strict=True):
            chances.append(p if parent < 0 else chances[parent] * p)
        self.chances = chances
        return sorted(range(len(chances)), key=lambda node: -chances[node])

    def best_chain(self) -> list[int]:
        """The chain of likeliest children from the root. Sets `chances`."""
        order, chain, last = self.best_first(), list[int](), _ROOT
        for node in order:
            if self.parents[node] == last:
                chain.append(node)
                last = node
        return chain

    def cut(self, nodes: Sequence[int], by: Sequence[str], why: str) -> Draft:
        """These nodes, with the parent of each, as a draft; `by`: the drafters' names."""
        kept = sorted(nodes)
        place = {node: i for i, node in enumerate(kept)}
        place[_ROOT] = -1
        return Draft(
            [self.tokens[node] for node in kept],
            [place[self.parents[node]] for node in kept],
            [self._p[node] for node in kept],
            by=["+".join([by[number] for number, _ in self.guesses[node]]) for node in kept],
            why=why,
        )

    def path(self, picked: Sequence[int]) -> list[int]:
        """The nodes that match the picked tokens, from the root."""
        found, node = [], _ROOT
        for token in picked:
            node = self._below.get(node, {}).get(token, _ROOT)
            if node == _ROOT:
                break
            found.append(node)
        return found

    def test(self, picked: Sequence[int], calibrations: Sequence[Calibration]) -> list[int]:
        """Update the calibrations by every guess whose parent was right; returns the path that was right."""
        path = self.path(picked)
        # After the last token picked nothing is known yet.
        for above, token in zip([_ROOT, *path], picked, strict=False):
            for child, node in self._below.get(above, {}).items():
                for number, kind in self.guesses[node]:
                    calibrations[number].add(kind, child == token)
        return path


def is_chain(draft: Draft) -> bool:
    """Whether no token has two successors."""
    return list(draft.parents) == list(range(-1, len(draft.parents) - 1))


def resume(cut: Draft, kept: Sequence[int], started: Draft | None, places: Sequence[int], pending: int) -> Draft:
    """`cut`, made of the nodes `kept`, with verification resumed after the blocks that the draft `started` has run, if
    all its tokens are from `started` and in the same order, as the cache holds them. places: the nodes of `started`'s
    tokens; pending: rows before the first drafted one.

    started 5 8 7 2, of which 5 7 are kept -> numbers 0 2
    """
    place = {node: number for number, node in enumerate(places)}
    numbers = [place.get(node, -1) for node in sorted(kept)]
    ascending = all(low < high for low, high in pairwise([-1, *numbers]))
    if started is None or started.hidden is None or not ascending:
        return cut
    hidden = started.hidden[[*range(pending), *[pending + number for number in numbers]]]
    return replace(cut, blocks=started.blocks, hidden=hidden, numbers=numbers, done=started.done)
