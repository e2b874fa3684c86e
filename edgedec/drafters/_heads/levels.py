"""Trees drafted level by level: the likeliest nodes of a level are expanded together (EAGLE-2; DySpec).

A node is expanded only while its path is among the best that the draft has room for, because its children are never
likelier than it."""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.drafters import Draft

# (minus the path's probability, order, token, parent's order, own probability, row of the level that it came from)
Node = tuple[float, int, int, int, float, int]
_MOST = 0.999


class Levels:
    """The best `nodes` tokens found so far; `frontier`: the nodes to expand next, at most `beam`."""

    def __init__(self, nodes: int, beam: int, least: float) -> None:
        self._nodes, self._beam, self._least = nodes, beam, least
        self._found: list[Node] = []
        self._order = 0
        self.frontier: list[Node] = [(-1.0, -1, -1, -1, 1.0, 0)]

    @property
    def tokens(self) -> list[int]:
        """The tokens of the frontier."""
        return [node[2] for node in self.frontier]

    @property
    def rows(self) -> list[int]:
        """The row of the level before that each node of the frontier came from."""
        return [node[5] for node in self.frontier]

    @property
    def together(self) -> float:
        """The probability that the text continues through one of the frontier's nodes."""
        return -sum(node[0] for node in self.frontier)

    def add(self, ids: Sequence[Sequence[int]], probs: Sequence[Sequence[float]]) -> None:
        """Add the tokens that may follow each node of the frontier, the likeliest first; they form the new frontier."""
        fresh: list[Node] = []
        for row, (node, tokens, own) in enumerate(zip(self.frontier, ids, probs, strict=True)):
            for token, p in zip(tokens, own, strict=True):
                p = min(p, _MOST)
                path = node[0] * p
                if -path < self._least:
                    break
                fresh.append((path, self._order, token, node[1], p, row))
                self._order += 1
        self._found = sorted(self._found + fresh)[: self._nodes]
        last = self._found[-1] if len(self._found) == self._nodes else (0.0, 0)
        # A child of the worst node of a full draft cannot enter: it would have to replace its own parent.
        self.frontier = sorted(node for node in fresh if node < last)[: self._beam]

    def draft(self) -> Draft:
        """The tree, by falling path probability; a parent comes before its children."""
        found, place = self._found, {-1: -1}
        place |= {node[1]: i for i, node in enumerate(found)}
        return Draft([n[2] for n in found], [place[n[3]] for n in found], [n[4] for n in found])
