"""A search tree over next tokens, for Monte Carlo tree search: values, visits, and the child to visit next."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log, sqrt

from edgedec.search.branch import Branch

# The authors' constants of the exploration weight.
_WEIGHT, _BASE = 4.0, 10.0


@dataclass(eq=False)
class TreeNode:
    """A text. p: of its last token; best: the largest reward below it; visits; children: None until it is expanded."""

    branch: Branch
    p: float = 1.0
    best: float = 0.0
    visits: int = 0
    children: list[TreeNode] | None = None
    chances: list[tuple[int, float]] = field(default_factory=list)

    def chosen(self) -> TreeNode:
        """The child of the largest P-UCB, the first of equals:

            Q + c P sqrt(ln N(s)) / (1 + N(s, a))          c = 4 + ln((N(s) + 11) / 10)

        A node of 4 visits, c = 4.405; Q .5, P .6, 3 visits: 0.5 + 4.405 * .6 * 1.177 / 4 = 1.278.
        """
        assert self.children
        weight = _WEIGHT + log((self.visits + _BASE + 1) / _BASE)
        reach = weight * sqrt(log(max(self.visits, 1)))
        return max(self.children, key=lambda child: child.best + reach * child.p / (1 + child.visits))

    def visit(self, reward: float) -> None:
        self.visits += 1
        self.best = max(self.best, reward)


class Completions:
    """Greedy texts by where they began: the text from any later point of one is the rest of it."""

    def __init__(self) -> None:
        self._known = list[tuple[int, Branch]]()

    def add(self, start: int, branch: Branch) -> None:
        """A text that is greedy after its first `start` tokens."""
        self._known.append((start, branch))

    def of(self, tokens: list[int]) -> Branch | None:
        """The greedy text after these tokens, if one is known."""
        n = len(tokens)
        return next((b for start, b in self._known if start <= n <= len(b.tokens) and b.tokens[:n] == tokens), None)
