"""The rows of a call: pending tokens, the draft below them, and trained prompt rows below the draft (parallel prompt
decoding); and the rows of a prompt that drafters learn from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edgedec.decoding.draft import Draft, PromptRows
from edgedec.decoding.messages import StepResult
from edgedec.runtime import CallResult, Outputs, Rows


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
        np.append(rows.tokens, np.asarray(prompts.tokens or [0] * n, np.int64)),
        np.asarray(positions, np.int64),
        np.append(rows.parents, parents),
        groups=np.array([-1] * len(rows) + list(prompts.groups)) if prompts.groups else None,
        embeddings=prompts.embeddings,
    )


def apart(result: CallResult, rows: int, begin: int) -> tuple[CallResult, CallResult]:
    """The results of the first `rows` rows of a call, and of its prompt rows; begin: the row of the result's first
    line."""
    lines, found = rows - begin, list[CallResult]()
    for part, states in ((slice(lines), slice(rows)), (slice(lines, None), slice(rows, None))):
        of = {name: getattr(result, name) for name in ("logits", "ids", "scores", "logsum", "entropy")}
        cut = {name: array[part] for name, array in of.items() if array is not None}
        found.append(replace(result, **cut, hidden={b: array[states] for b, array in result.hidden.items()}))
    return found[0], found[1]


def first_taught(before: int, wanted: int) -> int:
    """Of `before` rows that precede the last one of a prompt, the first of the last `wanted`."""
    return max(before - wanted, 0)


def showing(outputs: Outputs, top: int, first: int) -> Outputs:
    """`outputs`, and the `top` best tokens of the rows from `first` on."""
    return (outputs | Outputs(top=top))._replace(logits_from=0 if outputs.head else first)


def taught(rows: Rows, first: int, stop: int, result: CallResult) -> StepResult:
    """The best tokens of the rows from `first` (the result's first line) to `stop`, as a step without a draft and
    without picked tokens."""
    assert result.ids is not None
    assert result.scores is not None
    n = stop - first
    return StepResult(rows.head(stop), first, (), (), CallResult(ids=result.ids[:n], scores=result.scores[:n]), 0.0)


def without(result: CallResult, lines: int) -> CallResult:
    """The result from line `lines` on; states are of all rows as before."""
    names = ("logits", "ids", "scores", "logsum", "entropy")
    found = {name: getattr(result, name) for name in names}
    return replace(result, **{name: array[lines:] for name, array in found.items() if array is not None})
