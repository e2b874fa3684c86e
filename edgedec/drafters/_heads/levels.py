"""Trees drafted level by level: the likeliest nodes of a level are stepped on together (EAGLE-2; DySpec, S42).

A node is only stepped on while its path is among the best that the draft has room for: after the worst of a full draft
nothing below it fits.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.drafters import Draft

# (minus the path's probability, order, token, parent's order, own probability, row of the level that it came from)
Node = tuple[float, int, int, int, float, int]
_MOST = 0.999


class Levels:
    """The best `nodes` tokens found so far; `frontier`: those to step on next, at most `beam`."""

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
        """How likely the text goes on through one of the frontier."""
        return -sum(node[0] for node in self.frontier)

    def add(self, ids: Sequence[Sequence[int]], probs: Sequence[Sequence[float]]) -> None:
        """What may follow each node of the frontier, the likeliest first; a new frontier of them."""
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
        # After the worst of a full draft nothing fits: it would have to take its own parent's place.
        self.frontier = sorted(node for node in fresh if node < last)[: self._beam]

    def draft(self) -> Draft:
        """The tree, by falling path probability; a parent comes before its children."""
        found, place = self._found, {-1: -1}
        place |= {node[1]: i for i, node in enumerate(found)}
        return Draft([n[2] for n in found], [place[n[3]] for n in found], [n[4] for n in found])
