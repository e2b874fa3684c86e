"""Draft trees of several drafters in one: merged by common prefix (RASD, S05), and cut to the rows that pay."""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.drafters import Draft
from edgedec.runtime import Hidden
from edgedec.speculation.calibration import BINS, Calibration

_ROOT = -1
_BARE = 0.5  # what a token without a claim claims


class Fusion:
    """Guesses below the last known token. Every node: its token, parent, chance of coming true with its whole
    path, and the guesses behind it, each (drafter's number, kind of claim)."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.chances: list[float] = []
        self.guesses: list[list[tuple[int, int]]] = []
        self._likely: list[float] = []
        self._below: dict[int, dict[int, int]] = {}

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, number: int, draft: Draft, estimates: Sequence[float]) -> list[int]:
        """The tree of drafter `number`; `estimates`: what each kind of its claims is worth. Where its tokens went."""
        places: list[int] = []
        claims = draft.p or [_BARE] * len(draft.tokens)
        for token, parent, claim in zip(draft.tokens, draft.parents, claims, strict=True):
            above = _ROOT if parent < 0 else places[parent]
            kind = int(claim * BINS)
            kind = 0 if kind < 0 else BINS - 1 if kind >= BINS else kind
            likely = estimates[kind]
            children = self._below.get(above)
            if children is None:
                children = self._below[above] = {}
            node = children.get(token)
            if node is None:
                node = children[token] = len(self.tokens)
                self.tokens.append(token)
                self.parents.append(above)
                self._likely.append(likely)
                self.guesses.append([(number, kind)])
            else:
                self.guesses[node].append((number, kind))
                if likely > self._likely[node]:
                    self._likely[node] = likely
            places.append(node)
        return places

    def best_first(self) -> list[int]:
        """Nodes by chance, parents before children. Sets `chances`."""
        chances: list[float] = []
        for parent, likely in zip(self.parents, self._likely, strict=True):
            chances.append(likely if parent < 0 else chances[parent] * likely)
        self.chances = chances
        return sorted(range(len(chances)), key=lambda node: -chances[node])

    def cut(self, nodes: Sequence[int], by: Sequence[str], why: str) -> Draft:
        """These nodes, with the parent of each, as a draft; `by`: the drafters' names."""
        kept = sorted(nodes)
        place = {node: i for i, node in enumerate(kept)}
        place[_ROOT] = -1
        return Draft(
            [self.tokens[node] for node in kept],
            [place[self.parents[node]] for node in kept],
            [self._likely[node] for node in kept],
            by=["+".join([by[number] for number, _ in self.guesses[node]]) for node in kept],
            why=why,
        )

    def path(self, picked: Sequence[int]) -> list[int]:
        """The nodes that came true, from the top."""
        found, node = [], _ROOT
        for token in picked:
            node = self._below.get(node, {}).get(token, _ROOT)
            if node == _ROOT:
                break
            found.append(node)
        return found

    def test(self, picked: Sequence[int], calibrations: Sequence[Calibration]) -> list[int]:
        """Tell the calibrations of every guess whose parent came true; returns the path that did."""
        path = self.path(picked)
        # Behind the last token picked nothing is known yet.
        for above, token in zip([_ROOT, *path], picked, strict=False):
            for child, node in self._below.get(above, {}).items():
                for number, kind in self.guesses[node]:
                    calibrations[number].saw(kind, child == token)
        return path
