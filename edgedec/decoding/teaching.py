"""Rows of a prompt that teach drafters: they show the model's best tokens, although nobody waits for those."""

from __future__ import annotations

from dataclasses import replace

from edgedec.decoding.step import StepResult
from edgedec.runtime import CallResult, Outputs, Rows


def first_taught(before: int, wanted: int) -> int:
    """Of `before` rows that precede the last one of a prompt, the first of the last `wanted`."""
    return max(before - wanted, 0)


def showing(outputs: Outputs, top: int, first: int) -> Outputs:
    """`outputs`, and the `top` best tokens of the rows from `first` on."""
    return (outputs | Outputs(top=top))._replace(logits_from=0 if outputs.head else first)


def taught(rows: Rows, first: int, stop: int, result: CallResult) -> StepResult:
    """What the rows from `first`, where the result's lines begin, to `stop` showed: a call in which nothing was drafted
    and nothing picked."""
    assert result.ids is not None
    assert result.scores is not None
    n = stop - first
    return StepResult(rows.head(stop), first, (), (), CallResult(ids=result.ids[:n], scores=result.scores[:n]), 0.0)


def without(result: CallResult, lines: int) -> CallResult:
    """The result from line `lines` on; states are of all rows as before."""
    names = ("logits", "ids", "scores", "logsum")
    found = {name: getattr(result, name) for name in names}
    return replace(result, **{name: array[lines:] for name, array in found.items() if array is not None})
