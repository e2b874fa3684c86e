"""Rejection sampling token by token (speculative sampling; Leviathan et al. 2023)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgedec.cache.rows import Rows
from edgedec.decoding.verify._by_node import down, in_turn
from edgedec.decoding.verify._drawn import Target, VerifierFacts
from edgedec.sampling import Probs

FACTS = VerifierFacts(paper="Fast Inference from Transformers via Speculative Decoding")


def verify(
    rows: Rows, target: Target, drafted: Sequence[Probs], rng: np.random.Generator, root: int
) -> tuple[list[int], list[int]]:
    """Rejection sampling token by token on a chain (Leviathan et al. 2023): of a node's children the first.

    Worked example:  p = 0.5 0.3 0.2     q = 0.2 0.6 0.2     draft 1
    accepted with 0.3 / 0.6 = 1/2; if not, the residual 1 0 0 gives 0
    """
    return down(rows, target, drafted, rng, root, lambda p, drawn, rng: in_turn(p, drawn[:1], rng))
