"""Verification node by node: one drawn token is accepted, or another token replaces them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from edgedec.cache.rows import Rows
from edgedec.decoding.verify._drawn import Drawn, Target, children_of, drawn_of
from edgedec.sampling import Probs, draw, residual


def down(
    rows: Rows,
    target: Target,
    drafted: Sequence[Probs],
    rng: np.random.Generator,
    root: int,
    choose: Callable[[Probs, Drawn, np.random.Generator], tuple[int | None, int]],
) -> tuple[list[int], list[int]]:
    """Verify node by node: `choose` returns the index of the accepted drawn token (None: none), and the token."""
    children, accepted, picked = children_of(rows, root), [root], list[int]()
    while True:
        below = drawn_of(rows, children.get(accepted[-1], []), drafted, root)
        p = target(accepted[-1], list(picked))
        at, token = choose(p, [(token, q) for _, token, q in below], rng)
        picked.append(token)
        if at is None:
            return accepted, picked
        accepted.append(below[at][0])


def in_turn(p: Probs, drawn: Drawn, rng: np.random.Generator) -> tuple[int | None, int]:
    """Try the drawn tokens in order, each as a draw from q without the tokens before it."""
    gone: list[int] = []
    for at, (token, whole) in enumerate(drawn):
        if token in gone:
            continue  # without replacement nothing comes twice
        q = _without(whole, gone)
        if rng.random() * q.of(token) < p.of(token):
            return at, token
        p = residual(p, q)
        gone.append(token)
    return None, draw(p, rng)


def _without(q: Probs, gone: Sequence[int]) -> Probs:
    """The distribution q under the condition that none of these tokens is drawn."""
    if not gone:
        return q
    keep = ~np.isin(q.ids, gone)
    return Probs(q.ids[keep], q.p[keep] / q.p[keep].sum())
