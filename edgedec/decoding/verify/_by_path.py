"""Verification of a whole path at once: a likely token compensates for an unlikely one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgedec.decoding.verify._drawn import Drawn, chances
from edgedec.sampling import Probs, draw, residual


def verify_path(targets: Sequence[Probs], drawn: Drawn, rng: np.random.Generator) -> tuple[int, int]:
    """The number of accepted tokens of a drawn path, and the token after them.

    targets: the distributions after none, one, two … of them. The weight of i tokens is weight_i = min(1, weight_i-1
    p/q). The residual there has the mass gap_i = sum max(weight_i p - q, 0), so that i tokens are accepted with
    probability gap / (gap + 1 - weight), the whole path with its weight; the longest accepted i counts."""
    kept, left, weight = 0, 1.0, 1.0
    for i, (token, q) in enumerate(drawn):
        p, drew = targets[i].of(token), q.of(token)
        if p == 0 or drew == 0:  # the latter by rounding only
            break
        weight = min(1.0, weight * p / drew)
        stands = weight
        if i + 1 < len(drawn):
            gap = float(np.maximum(weight * targets[i + 1].p - chances(drawn[i + 1][1], targets[i + 1].ids), 0).sum())
            # At weight 1 without a gap p is q: the next token's weight is 1 as well, and decides.
            stands = gap / (gap + 1 - weight) if weight < 1 else 1.0
        if rng.random() < stands:
            kept, left = i + 1, weight
    last = targets[kept]
    if kept < len(drawn):
        last = residual(Probs(last.ids, left * last.p), drawn[kept][1])
    return kept, draw(last, rng)
