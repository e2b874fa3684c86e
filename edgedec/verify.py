"""Verification: which drafted rows of a tree stand, and what comes after them. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from edgedec.rows import Rows
from edgedec.sampling import Probs

# (rows, target(row, path), what each drafted token was drawn from, rng, root) -> (accepted rows, tokens picked)
Verifier = Callable[
    [Rows, Callable[[int, list[int]], Probs], Sequence[Probs], np.random.Generator, int], tuple[list[int], list[int]]
]


def walk(rows: Rows, pick: Callable[[int, list[int]], int], root: int = 0) -> tuple[list[int], list[int]]:
    """Follow the target's own choices through a tree -> (accepted rows, tokens picked, one a row).

    Row `root` is the last known token, run by this very call; rows before it are prompt, rows behind
    it are drafted. The last token picked is new: no row ran it yet. `pick(row, path)` draws the token
    that follows `row` from the target's distribution there, `path` being the drafted tokens accepted
    so far.

    Lossless for any draft. Every token returned was drawn from the target's own distribution given
    its path, the very draw that plain decoding makes; the draft only decides whether the logits for
    the draw after it are at hand. A drafter cannot make a token likelier by proposing it: greedy
    output is the same token for token, sampled output has the same distribution, and as `pick` is
    called once a token, in order, one seed even gives the same tokens. (Rejection sampling accepts
    more of a draft that was itself sampled, but has to trust the drafter's probabilities.)

    Worked example, root 7 with drafts 8 -> 5 and 9; the target says 7 -> 8 -> 4:

        7 ─┬─ 8 ── 5       rows 0, 1, 2 and 3 (the 9)
           └─ 9            pick(0, []) = 8 matches row 1; pick(1, [8]) = 4 matches nothing
                           -> ([0, 1], [8, 4])

    Of several children with one token the first wins.
    """
    accepted, picked = [root], [pick(root, [])]
    while (child := _child(rows, accepted[-1], picked[-1])) is not None:
        accepted.append(child)
        picked.append(pick(child, list(picked)))
    return accepted, picked


def _child(rows: Rows, row: int, token: int) -> int | None:
    """The first child of `row` that carries `token`; a parent comes before its children."""
    if row == len(rows) - 1:
        return None
    return next((int(c) for c in rows.children(row) if rows.tokens[c] == token), None)


# How a tree is verified whose tokens were drawn, by name.
VERIFIERS: dict[str, Verifier] = {}
