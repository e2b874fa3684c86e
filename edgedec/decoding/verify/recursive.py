"""Recursive rejection of children drawn without replacement (recursive speculative decoding)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgedec.cache.rows import Rows
from edgedec.decoding.verify._by_node import down, in_turn
from edgedec.decoding.verify._drawn import Target, VerifierFacts
from edgedec.sampling import Probs

FACTS = VerifierFacts(bushy=2, paper="Recursive Speculative Decoding")


def verify(
    rows: Rows, target: Target, drafted: Sequence[Probs], rng: np.random.Generator, root: int
) -> tuple[list[int], list[int]]:
    """Recursive rejection (RSD): the children of a node were drawn from q without replacement.

    They are tried in the order of their rows, which must be the order they were drawn in (one after another,
    or the largest first of log q + Gumbel noise). When x is rejected, p becomes the residual, and q is renormalised
    without x: the distribution that the next child was drawn from. `drafted` has the whole q for every sibling.
    Duplicates are skipped, so independent draws are valid as well, with fewer candidates.

    Worked example:  p = 0.4 0.2 0.4     q = 0.2 0.6 0.2     drafts 1, 2
    1 is accepted with 0.2 / 0.6 = 1/3; if not, p = 0.5 0 0.5 and q = 0.5 0 0.5: 2 is accepted for sure
    """
    return down(rows, target, drafted, rng, root, in_turn)
