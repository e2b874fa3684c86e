"""Block verification of a chain: the whole path at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgedec.cache.rows import Rows
from edgedec.decoding.verify._by_path import verify_path
from edgedec.decoding.verify._drawn import Drawn, Target, VerifierFacts, children_of, drawn_of
from edgedec.sampling import Probs

FACTS = VerifierFacts(paper="Block Verification Accelerates Speculative Decoding")


def verify(
    rows: Rows, target: Target, drafted: Sequence[Probs], rng: np.random.Generator, root: int
) -> tuple[list[int], list[int]]:
    """Block verification (Sun et al. 2024) of a chain, of a node's children the first: the whole path at once.

    A token that is likelier under p than under q compensates for an earlier one that is less likely. `verify_path` has
    the rule.

    Worked example:  p = 1/3 2/3     q = 2/3 1/3, whatever came before; two tokens are drafted
    0 1 is always accepted (weights 1/2, 1), where token by token the 0 falls every other time; in the mean
    11/9 tokens are accepted instead of 10/9
    """
    children, chain = children_of(rows, root), [root]
    targets, drawn = [target(root, [])], Drawn()
    while below := drawn_of(rows, children.get(chain[-1], [])[:1], drafted, root):
        ((row, token, q),) = below
        chain.append(row)
        drawn.append((token, q))
        if targets[-1].of(token) == 0:
            break  # nothing can be accepted from here on
        targets.append(target(row, [t for t, _ in drawn]))
    kept, new = verify_path(targets, drawn, rng)
    return chain[: kept + 1], [*[t for t, _ in drawn[:kept]], new]
