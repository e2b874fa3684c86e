"""The state of a recurrent block for one sequence: committed, pending by row, and the few that truncation can go back
to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgedec.cache.rows import Rows
from edgedec.errors import UsageError
from edgedec.spec import Stateful

Array = NDArray[np.float32]
# The least rows of a chunk whose final state is kept for truncation; the most kept states.
_WORTH, _KEPT = 16, 4


class Recurrent(NamedTuple):
    """conv [conv_size - 1, conv_dim]: the last inputs of the convolution; state [n_heads, head_dim, state_size], of a
    short convolution alone of no head; value [n_heads, head_dim] or [channels]: of a pending row, for later blocks."""

    conv: Array
    state: Array
    value: Array | None = None


class RecurrentState:
    """The states of one block. The runtime gives pending states one by one, or as a function that computes them."""

    def __init__(self, block: Stateful) -> None:
        self._block = block
        self.reset()

    def reset(self) -> None:
        """Reset to an empty text."""
        block = self._block
        zero = Recurrent(
            np.zeros((block.conv_size - 1, block.conv_dim), np.float32),
            np.zeros((block.n_heads, block.head_dim, block.state_size), np.float32),
        )
        self.committed, self._checkpoints = zero, [(0, zero)]
        self._start, self._numbers = zero, list[int]()
        self._at: list[Callable[[], Recurrent]] = []

    def write(self, rows: Rows, states: Sequence[Callable[[], Recurrent]]) -> None:
        """The states after the computed rows of a call."""
        if rows.first == 0:
            self._start = self.committed
        self._numbers[rows.first :] = rows.row_numbers()[rows.first :].tolist()
        self._at[rows.first :] = states

    @property
    def start(self) -> Recurrent:
        """The state that the pending tree began with."""
        return self._start

    @property
    def pending(self) -> Sequence[Callable[[], Recurrent]]:
        """The states of the pending rows, as given to `write`."""
        return self._at

    def values(self, rows: Rows, block: int) -> Array:
        """What this block, number `block`, keeps of each computed row of a call for later ones [count,
        ...]; UsageError unless this call or one before has run it on them."""
        numbers = rows.row_numbers()[rows.first :].tolist()
        if self._numbers[rows.first : len(rows)] != numbers:
            raise UsageError(
                f"the rows read values of block {block}, which has not run on them: run block {block} on them first"
            )
        found = [self._at[row]().value for row in range(rows.first, len(rows))]
        return np.stack([value for value in found if value is not None])

    def before(self, rows: Rows, row: int) -> Recurrent:
        """The state that row `row` of a call starts from: its parent's, or the committed one. Earlier rows must be
        written."""
        parent = int(rows.parents[row])
        if parent < 0:
            return self.committed if rows.first == 0 else self._start
        return self._at[parent]()

    def commit(self, rows: Sequence[int], length: int) -> None:
        """Commit the state of the last of these rows that the block was run on; the text then has `length` tokens."""
        at = {number: i for i, number in enumerate(self._numbers)}
        held = [at[row] for row in rows if row in at]
        if not held:
            return
        self.committed = self._at[held[-1]]()._replace(value=None)
        if len(held) >= _WORTH:
            self._checkpoints = [self._checkpoints[0], *self._checkpoints[1:][1 - _KEPT :], (length, self.committed)]

    def rollback(self) -> None:
        self._start, self._numbers, self._at = self.committed, [], []

    def reachable(self, length: int, now: int) -> int:
        """The longest text of at most `length` tokens whose state is known, `now` being the present length."""
        return length if length >= now else max(n for n, _ in self._checkpoints if n <= length)

    def truncate(self, length: int, now: int) -> None:
        """Return to the state at `length`, a result of `reachable`."""
        if length < now:
            self._checkpoints = [pair for pair in self._checkpoints if pair[0] <= length]
            self.committed = self._checkpoints[-1][1]
        self.rollback()

    def copy(self) -> RecurrentState:
        """An independent one with the same committed state (states are never written in place)."""
        twin = RecurrentState(self._block)
        twin.committed, twin._checkpoints = self.committed, list(self._checkpoints)
        twin.rollback()
        return twin

    def load(self, state: Recurrent, length: int) -> None:
        """Hold this state of a text of `length` tokens."""
        self.reset()
        state = self.committed = Recurrent(state.conv.copy(), state.state.copy())
        self._checkpoints = [*self._checkpoints, (length, state)] if length else self._checkpoints
        self.rollback()


def reachable(states: Collection[RecurrentState], length: int, now: int) -> int:
    """The largest length up to `length` to which all states can return. now: the committed tokens."""
    while True:
        found = min((state.reachable(length, now) for state in states), default=length)
        if found == length:
            return length
        length = found
