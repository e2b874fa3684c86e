"""Draft trees: grown greedily by path probability.

DySpec: of all tokens that could be added, always the one whose whole path is most likely to be accepted. Greedy is
optimal here: a node's path is never likelier than its parent's, so the n best nodes form a tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import TypeVar

from edgedec.decoding.draft import Draft

S = TypeVar("S")
# (token, its probability, the state after it)
Follower = tuple[int, float, S]


def grow(root: S, followers: Callable[[S], Iterable[Follower[S]]], nodes: int, min_path_prob: float = 0.0) -> Draft:
    """The `nodes` likeliest tokens below `root`, but none whose path is less likely than `min_path_prob`.

    `followers(state)`: tokens that may follow, no token twice.

    Worked example, nodes=3: a 0.6 -> (c 0.5, d 0.2), b 0.4 -> (e 0.5)
    paths a 0.6, b 0.4, c 0.3, e 0.2, d 0.12 -> tokens a b c, parents -1 -1 0
    """
    heap: list[tuple[float, int, int, int, float, S]] = []
    tokens: list[int] = []
    parents: list[int] = []
    claims: list[float] = []
    count, parent, worth, state = 0, -1, 1.0, root
    while True:
        for token, p, follower in followers(state):
            path = worth * p
            if path >= min_path_prob and path > 0.0:
                heappush(heap, (-path, count, token, parent, p, follower))
                count += 1
        if not heap or len(tokens) >= nodes:
            return Draft(tokens, parents, claims)
        negative, _, token, above, p, state = heappop(heap)
        parent, worth = len(tokens), -negative
        tokens.append(token)
        parents.append(above)
        claims.append(p)
        if len(tokens) >= nodes:
            return Draft(tokens, parents, claims)
