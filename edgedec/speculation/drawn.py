"""A drawn draft and the guesses of other drafters as one tree.

All drawn tokens run: leaving some out by their value would change their distribution. Guesses are further rows without
a distribution. The verifier of the drawn draft runs first, on the drawn rows alone; from its last token on,
verification follows the target's own draws through all rows. This is recursive rejection over the whole tree: accepting
a deterministic guess x with its probability under the residual of p, and otherwise removing it from p, is equivalent to
drawing from that residual and comparing the draw with x.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edgedec.decoding.draft import Draft
from edgedec.trees.merge import MergedTree


def beyond(drawn: Draft, merger: MergedTree, order: Sequence[int]) -> list[int]:
    """The nodes, parents first, that are not in the drawn draft."""
    rows = _rows(drawn, merger, order)
    return [node for node in order if rows[node] < 0]


def with_guesses(drawn: Draft, merger: MergedTree, nodes: Sequence[int], by: Sequence[str], name: str) -> Draft:
    """The drawn draft of the drafter `name`, and `nodes` after it; by: the drafters' names."""
    kept = sorted(nodes)
    rows = _rows(drawn, merger, range(len(merger)))
    for row, node in enumerate(kept, len(drawn.tokens)):
        rows[node] = row
    above = [merger.parents[node] for node in kept]
    guessed = ["+".join([by[number] for number, _ in merger.guesses[node]]) for node in kept]
    return replace(
        drawn,
        tokens=[*drawn.tokens, *(merger.tokens[node] for node in kept)],
        parents=[*drawn.parents, *(rows[parent] if parent >= 0 else -1 for parent in above)],
        p=[*drawn.p, *(merger.chances[node] for node in kept)] if drawn.p else (),
        by=[*[name] * len(drawn.tokens), *guessed],
        why=f"{len(drawn.tokens)} drawn, {len(kept)} guesses",
    )


def _rows(drawn: Draft, merger: MergedTree, order: Sequence[int]) -> dict[int, int]:
    """The drawn row of each node; -1 if there is none."""
    below: dict[tuple[int, int], int] = {}
    for row, key in enumerate(zip(drawn.parents, drawn.tokens, strict=True)):
        below.setdefault(key, row)
    rows = {-1: -1}
    for node in order:
        parent = merger.parents[node]
        known = parent < 0 or rows[parent] >= 0
        rows[node] = below.get((rows[parent], merger.tokens[node]), -1) if known else -1
    return rows
