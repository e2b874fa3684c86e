"""K-sequential selection of independent draws (SpecTr)."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence

import numpy as np

from edgedec.cache.rows import Rows
from edgedec.decoding.verify._by_node import down
from edgedec.decoding.verify._drawn import Drawn, Target, VerifierFacts, chances
from edgedec.sampling import Probs, draw, residual

FACTS = VerifierFacts(bushy=2, paper="SpecTr")
_HALVINGS = 30


def verify(
    rows: Rows, target: Target, drafted: Sequence[Probs], rng: np.random.Generator, root: int
) -> tuple[list[int], list[int]]:
    """K-sequential selection (SpecTr): the children of a node are independent draws from q, duplicates included.

    With k of them each is accepted with the lower probability min(1, p / (rho q)), so that together they are never
    accepted more often than p allows. beta = sum min(q, p / rho) of the draws are accepted, so some draw is with 1 - (1
    - beta)^k, and rho is the smallest for which that is at most rho beta.

    Worked example:  p = 0.7 0.3     q = 0.3 0.7     k = 2
    rho = 1.5, beta = 0.5: a 0 is always accepted, a 1 with 0.3 / (1.5 * 0.7) = 2/7; one of two is with 3/4
    (one draft alone: 0.6). If none is: 0.7 - 0.3 * 1.5 = 0.25 and 0.3 - 0.2 * 1.5 = 0, so 0.
    """
    return down(rows, target, drafted, rng, root, _k_sequential)


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
    # For every rho in [1, k] some tokens contribute q and others p / rho; only the few between them depend on rho.
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
