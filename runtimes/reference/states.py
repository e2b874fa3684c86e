"""The states that the rows of a recurrent block start from, and how they are given to a cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgedec.cache.recurrent import Recurrent, RecurrentState
from edgedec.runtime import Rows


def stepped(rows: Rows, i: int, states: Sequence[Recurrent], kept: RecurrentState) -> Recurrent:
    """The state that computed row i of a call starts from. states: after the computed rows before it."""
    parent = int(rows.parents[rows.first + i]) - rows.first
    return states[parent] if parent >= 0 else kept.before(rows, rows.first + i)


def given(state: Recurrent) -> Callable[[], Recurrent]:
    """A function that returns the state."""
    return lambda: state
