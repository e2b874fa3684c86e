"""Greedy multi-path block verification: the best of several independent paths, as a block."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgedec.cache.rows import Rows
from edgedec.decoding.verify._by_path import verify_path
from edgedec.decoding.verify._drawn import Drawn, Target, VerifierFacts, chances, children_of, drawn_of
from edgedec.sampling import Ids, Probs

FACTS = VerifierFacts(bushy=1, paper="Greedy Multi-Path Block Verification")


def verify(
    rows: Rows, target: Target, drafted: Sequence[Probs], rng: np.random.Generator, root: int
) -> tuple[list[int], list[int]]:
    """Greedy multi-path block verification (GBV): chooses one of several independent paths, and verifies it as a block.

    A path is a leaf's, so as many paths run through a row as leaves lie below it. Paths may share rows as long
    as they agree, but each ends in a row of its own: two that agree to the end have twin leaves. How long
    a path is may depend on its own tokens only.

    At every node the token with the largest p/q is chosen (of equals the largest) among those of the m paths
    that agree so far; those that have it go on. As they are independent, the chosen token is x with
    q~(x) = F(x)^m - F(below x)^m, F adding up q in the order of p/q. So the chosen path is one draw
    from q~, which `verify_path` verifies; that m follows from tokens not chosen changes nothing, for p/q~ is
    the same whatever becomes of m, and the paths that go on are again independent.

    Worked example:  p = 0.7 0.3     q = 0.3 0.7     two paths of one token
    order 1, 0; F = 0.7, 1; q~ = 0.51 0.49: 0 is always accepted, 1 with 0.3 / 0.49, together 0.81
    """
    children, agree = children_of(rows, root), [[root]]
    leaves = _leaves(rows, root)
    targets, drawn = [target(root, [])], Drawn()
    while below := drawn_of(rows, [c for row in agree[-1] for c in children.get(row, [])], drafted, root):
        q = below[0][2]
        token, law = _greedy(targets[-1], q, [t for _, t, _ in below], sum(leaves[row] for row, _, _ in below))
        agree.append([row for row, t, _ in below if t == token])
        drawn.append((token, law))
        if targets[-1].of(token) == 0:
            break
        targets.append(target(agree[-1][0], [t for t, _ in drawn]))
    kept, new = verify_path(targets, drawn, rng)
    path = [agree[kept][0]]
    while path[0] != root:
        path.insert(0, int(rows.parents[path[0]]))
    return path, [*[t for t, _ in drawn[:kept]], new]


def _greedy(p: Probs, q: Probs, tokens: Sequence[int], m: int) -> tuple[int, Probs]:
    """Of tokens that m draws from q gave, the one with the largest p/q; and what such a choice is drawn from."""
    ratio = chances(p, q.ids) / q.p
    order = np.argsort(ratio, kind="stable")
    upto = np.cumsum(q.p[order])
    upto = (upto / upto[-1]) ** m
    law = np.empty(len(order))
    law[order] = np.diff(upto, prepend=0.0)
    at = max(np.searchsorted(q.ids, tokens).tolist(), key=lambda i: (ratio[i], i))
    kept: Ids = q.ids[law > 0]
    return int(q.ids[at]), Probs(kept, law[law > 0])


def _leaves(rows: Rows, root: int) -> list[int]:
    """How many leaves lie at or below each row."""
    leaves, parents = [0] * len(rows), rows.parents.tolist()
    for row in range(len(rows) - 1, root, -1):
        leaves[row] = leaves[row] or 1
        leaves[parents[row]] += leaves[row]
    return leaves
