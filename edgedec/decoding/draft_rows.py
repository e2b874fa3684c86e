"""The rows of a call that verifies a draft; below them, prompt rows (PPD, S23), which are never accepted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edgedec.drafters import Draft, PromptRows
from edgedec.runtime import CallResult, Rows


def with_draft(first: Rows, draft: Draft) -> Rows:
    """The pending rows, and the draft below the last of them."""
    root = len(first) - 1
    parents = [parent + root + 1 for parent in draft.parents]
    start = int(first.positions[0])
    if root:
        rows = Rows.tree([*first.tokens.tolist(), *draft.tokens], [*first.parents.tolist(), *parents], start)
    else:
        rows = Rows.tree([int(first.tokens[0]), *draft.tokens], [-1, *parents], start)
    if draft.hidden is None or list(draft.numbers) == list(range(len(draft.numbers))):
        return rows
    return replace(rows, numbers=np.array([*range(root + 1), *[root + 1 + number for number in draft.numbers]]))


def with_prompts(rows: Rows, root: int, prompts: PromptRows) -> Rows:
    """Pending and drafted rows, and prompt rows below them."""
    positions = rows.positions.tolist()
    for parent in prompts.parents:
        positions.append(positions[root + 1 + parent] + 1)
    n, parents = len(prompts.parents), root + 1 + np.asarray(prompts.parents, np.int64)
    return Rows(
        np.append(rows.tokens, np.zeros(n, np.int64)),
        np.asarray(positions, np.int64),
        np.append(rows.parents, parents),
        embeddings=prompts.embeddings,
    )


def apart(result: CallResult, rows: int, begin: int) -> tuple[CallResult, CallResult]:
    """What the first `rows` rows of a call showed, and what its prompt rows did; begin: the row of the first line."""
    lines, found = rows - begin, list[CallResult]()
    for part, states in ((slice(lines), slice(rows)), (slice(lines, None), slice(rows, None))):
        of = {name: getattr(result, name) for name in ("logits", "ids", "scores", "logsum")}
        cut = {name: array[part] for name, array in of.items() if array is not None}
        found.append(replace(result, **cut, hidden={b: array[states] for b, array in result.hidden.items()}))
    return found[0], found[1]
