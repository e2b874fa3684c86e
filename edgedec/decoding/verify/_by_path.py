"""Verification of a whole path at once: one of its tokens makes up for another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgedec.decoding.verify._drawn import Drawn, chances
from edgedec.sampling import Probs, draw, residual


def verify_path(targets: Sequence[Probs], drawn: Drawn, rng: np.random.Generator) -> tuple[int, int]:
    """How many drawn tokens of a path stand, and the token after them.

    targets: after none, one, two … of them. After i tokens the path is worth weight_i = min(1, weight_i-1 p/q).
    Ending there with what weight_i p has beyond q makes up for gap_i = sum max(weight_i p - q, 0) of it, so
    that i tokens stand with gap / (gap + 1 - weight), all of them with their weight; the longest such i counts.
    """
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
