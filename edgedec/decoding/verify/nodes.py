"""Verifiers that go node by node: which of the tokens drawn here stands, or what comes in their place."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Sequence

import numpy as np

from edgedec.cache.rows import Rows
from edgedec.decoding.verify._drawn import Drawn, Target, chances, children_of, drawn_of
from edgedec.sampling import Probs, draw, residual

_HALVINGS = 30


def token(
    rows: Rows, target: Target, drafted: Sequence[Probs], rng: np.random.Generator, root: int
) -> tuple[list[int], list[int]]:
    """Rejection sampling token by token on a chain (Leviathan et al. 2023): of a node's children the first.

    Worked example:  p = 0.5 0.3 0.2     q = 0.2 0.6 0.2     draft 1
    accepted with 0.3 / 0.6 = 1/2; if not, the residual 1 0 0 gives 0
    """
    return _down(rows, target, drafted, rng, root, lambda p, drawn, rng: _in_turn(p, drawn[:1], rng))


def recursive(
    rows: Rows, target: Target, drafted: Sequence[Probs], rng: np.random.Generator, root: int
) -> tuple[list[int], list[int]]:
    """Recursive rejection (S51, RSD): the children of a node were drawn from q without replacement.

    They are tried in the order of their rows, which must be the order they were drawn in (one after another,
    or the largest first of log q + Gumbel noise). Once x is refused, p becomes the residual, and q what x leaves
    of it, renormalised: the next child was drawn from just that. `drafted` gives every sibling the whole q.
    A twin is passed over, so independent draws will do as well, if fewer of them count.

    Worked example:  p = 0.4 0.2 0.4     q = 0.2 0.6 0.2     drafts 1, 2
    1 is accepted with 0.2 / 0.6 = 1/3; if not, p = 0.5 0 0.5 and q = 0.5 0 0.5: 2 is accepted for sure
    """
    return _down(rows, target, drafted, rng, root, _in_turn)


def spectr(
    rows: Rows, target: Target, drafted: Sequence[Probs], rng: np.random.Generator, root: int
) -> tuple[list[int], list[int]]:
    """K-sequential selection (S50, SpecTr): the children of a node are independent draws from q, twins included.

    With k of them each may be accepted a little more rarely, min(1, p / (rho q)), so that together they
    are never accepted more often than p allows. beta = sum min(q, p / rho) of the draws are accepted, so some draw
    is with 1 - (1 - beta)^k, and rho is the smallest for which that is at most rho beta.

    Worked example:  p = 0.7 0.3     q = 0.3 0.7     k = 2
    rho = 1.5, beta = 0.5: a 0 is always accepted, a 1 with 0.3 / (1.5 * 0.7) = 2/7; one of two is with 3/4
    (one draft alone: 0.6). If none is: 0.7 - 0.3 * 1.5 = 0.25 and 0.3 - 0.2 * 1.5 = 0, so 0.
    """
    return _down(rows, target, drafted, rng, root, _k_sequential)


def _down(
    rows: Rows,
    target: Target,
    drafted: Sequence[Probs],
    rng: np.random.Generator,
    root: int,
    choose: Callable[[Probs, Drawn, np.random.Generator], tuple[int | None, int]],
) -> tuple[list[int], list[int]]:
    """Node by node: `choose` says which of the drawn tokens stands (None: none does), and the token."""
    children, accepted, picked = children_of(rows, root), [root], list[int]()
    while True:
        below = drawn_of(rows, children.get(accepted[-1], []), drafted, root)
        p = target(accepted[-1], list(picked))
        at, token = choose(p, [(token, q) for _, token, q in below], rng)
        picked.append(token)
        if at is None:
            return accepted, picked
        accepted.append(below[at][0])


def _in_turn(p: Probs, drawn: Drawn, rng: np.random.Generator) -> tuple[int | None, int]:
    """One drawn token after another, each from what those before it left of q."""
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
    """q given that none of these is drawn."""
    if not gone:
        return q
    keep = ~np.isin(q.ids, gone)
    return Probs(q.ids[keep], q.p[keep] / q.p[keep].sum())


def _k_sequential(p: Probs, drawn: Drawn, rng: np.random.Generator) -> tuple[int | None, int]:
    if not drawn:
        return None, draw(p, rng)
    q, k = drawn[0][1], len(drawn)
    rho, beta = _rho(p, q, k)
    for at, (token, _) in enumerate(drawn):
        if rng.random() * rho * q.of(token) < p.of(token):
            return at, token
    often = (1 - (1 - beta) ** k) / beta if beta > 0 else 0.0
    taken = np.minimum(chances(q, p.ids), p.p / rho) * often
    return None, draw(residual(p, Probs(p.ids, taken)), rng)


def _rho(p: Probs, q: Probs, k: int) -> tuple[float, float]:
    """SpecTr's rho, and beta(rho): by halving, from above, where nothing is accepted too often."""
    mine, other = chances(p, q.ids), q.p
    # Whatever rho in [1, k] is, of some tokens q is always accepted, of others p / rho; between them lie few.
    always, never = mine >= k * other, mine <= other
    sure, spare = float(other[always].sum()), float(mine[never & ~always].sum())
    between = ~(always | never)
    ratio = mine[between] / other[between]
    order = np.argsort(ratio)
    steps = ratio[order].tolist()
    below = np.cumsum(np.append(spare, mine[between][order])).tolist()
    above = np.cumsum(np.append(sure, other[between][order][::-1]))[::-1].tolist()

    def beta(rho: float) -> float:
        at = bisect(steps, rho)
        total: float = below[at] / rho + above[at]
        return min(total, 1.0)

    low, high = 1.0, float(k)
    for _ in range(_HALVINGS if k > 1 else 0):
        rho = (low + high) / 2
        b = beta(rho)
        low, high = (rho, high) if 1 - (1 - b) ** k > rho * b else (low, rho)
    return high, beta(high)
