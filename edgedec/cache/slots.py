"""The assignment of rows to the slots of a block, independent of the stored data.

    committed        pending tree
    0 1 2 ... c-1 | start + 0, start + 1, ...     start = c when the tree began

Committing rows moves them down, so that committed slots stay contiguous: `commit` returns the moves, and the owner of
the storage performs them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgedec.cache.rows import Rows
from edgedec.errors import SessionError, UsageError

Ints = NDArray[np.int64]
Moves = tuple[list[int], list[int]]


class SlotMap:
    """The slots of one or more blocks that hold the same rows: for each its position and its token's number in the
    text."""

    def __init__(self, room: int) -> None:
        self.committed = self._start = 0
        self._numbers: list[int] = []
        self._positions, self._tokens = np.zeros(room, np.int64), np.zeros(room, np.int64)

    def copy(self) -> SlotMap:
        twin = SlotMap(0)
        twin.committed, twin._start, twin._numbers = self.committed, self._start, list(self._numbers)
        twin._positions, twin._tokens = self._positions.copy(), self._tokens.copy()
        return twin

    def same_as(self, other: SlotMap) -> bool:
        """Whether both hold the same committed and the same pending rows."""
        n = self.committed
        return (
            n == other.committed
            and (self._start, self._numbers) == (other._start, other._numbers)
            and np.array_equal(self._positions[:n], other._positions[:n])
            and np.array_equal(self._tokens[:n], other._tokens[:n])
        )

    @property
    def positions(self) -> Ints:
        """The positions of the committed slots."""
        return self._positions[: self.committed]

    @property
    def tokens(self) -> Ints:
        """The place in the text of each committed slot's token."""
        return self._tokens[: self.committed]

    def write(self, rows: Rows) -> tuple[int, int]:
        """Make room for the computed rows of a call: the slots from the first to before the last. The rows before
        `rows.first` must be the pending ones."""
        if rows.first == 0:
            self._start, self._numbers = self.committed, []
        elif rows.first > len(self._numbers) or self._start != self.committed:
            raise UsageError(f"rows from {rows.first} on cannot be added to {len(self._numbers)} pending ones")
        del self._numbers[rows.first :]
        self._numbers += rows.row_numbers()[rows.first :].tolist()
        start, stop = self._start + rows.first, self._start + len(rows)
        self._grow(stop)
        self._positions[start:stop] = rows.positions[rows.first :]
        return start, stop

    def span(self, rows: Rows, block: int) -> tuple[int, int]:
        """The slots (from, to) of the computed rows of a call; UsageError unless those are among the first pending."""
        if self._start != self.committed or self._numbers[: len(rows)] != rows.row_numbers().tolist():
            raise UsageError(f"rows of a block that reads what block {block} keeps: run block {block} on them first")
        return self._start + rows.first, self._start + len(rows)

    def commit(self, rows: Sequence[int], length: int) -> Moves:
        """Keep rows by number as tokens `length`, `length + 1`, ... of the text: the slots to move and where to."""
        n = len(rows)
        if self._start == self.committed and list(rows) == self._numbers[:n] == list(range(n)):
            self._tokens[self.committed : self.committed + n] = np.arange(length, length + n)
            self.committed += n
            return [], []  # the first rows of the tree lie where they belong
        at = {number: self._start + i for i, number in enumerate(self._numbers)}
        source = [at[row] for row in rows if row in at]
        target = list(range(self.committed, self.committed + len(source)))
        self._positions[target] = self._positions[source]
        self._tokens[target] = [length + i for i, row in enumerate(rows) if row in at]
        self.committed += len(source)
        moved = [(s, t) for s, t in zip(source, target, strict=True) if s != t]
        return [s for s, _ in moved], [t for _, t in moved]

    def attach(self, n: int, length: int) -> None:
        """Keep the first n pending rows as further slots of token `length` - 1; where none are pending, nothing."""
        at = self.committed
        if not self._numbers:
            return
        if self._start != at or self._numbers[:n] != list(range(n)):
            raise UsageError(f"{n} rows cannot be attached: {len(self._numbers)} are pending in this block")
        self._tokens[at : at + n] = length - 1
        self.committed = at + n
        self.rollback()

    def extend(self, tokens: Ints) -> None:
        """Hold slots of these tokens, at their positions, after the committed ones."""
        self._grow(self.committed + len(tokens))
        for kept in (self._positions, self._tokens):
            kept[self.committed : self.committed + len(tokens)] = tokens
        self.committed += len(tokens)
        self.rollback()

    def rollback(self) -> None:
        self._start, self._numbers = self.committed, []

    def truncate(self, length: int) -> None:
        """Forget tokens from `length` on."""
        self.committed = int(np.searchsorted(self.tokens, length))
        self.rollback()

    def drop(self, slots: Sequence[int] | Ints) -> Ints:
        """Forget committed slots: the ones that stay, ascending."""
        gone = np.asarray(slots, np.int64)
        if len(gone) and not (gone.min() >= 0 and gone.max() < self.committed):
            raise UsageError(f"slots {gone.min()} to {gone.max()}: the block holds {self.committed}")
        stay = np.setdiff1d(np.arange(self.committed), gone)
        self._positions[: len(stay)], self._tokens[: len(stay)] = self._positions[stay], self._tokens[stay]
        self.committed = len(stay)
        self.rollback()
        return stay

    def drop_by_head(self, slots: Ints) -> Ints:
        """Forget committed slots of each head [heads, n]: the ones that stay [heads, m]. A slot is then that of the
        latest one that a head has there."""
        if slots.size and not (slots.min() >= 0 and slots.max() < self.committed):
            raise UsageError(f"slots {slots.min()} to {slots.max()}: the block holds {self.committed}")
        every = np.arange(self.committed)
        stay = np.stack([np.setdiff1d(every, part) for part in slots])
        self.drop(np.setdiff1d(every, stay.max(axis=0)))
        return stay

    def load(self, positions: Ints, tokens: Ints) -> None:
        """Hold these committed slots and nothing else."""
        self._grow(len(positions))
        self.committed = len(positions)
        self._positions[: self.committed], self._tokens[: self.committed] = positions, tokens
        self.rollback()

    def _grow(self, room: int) -> None:
        if room > len(self._positions):
            more = np.zeros(max(room, 2 * len(self._positions)) - len(self._positions), np.int64)
            self._positions = np.concatenate([self._positions, more])
            self._tokens = np.concatenate([self._tokens, more])


def with_slots(shape: tuple[int, ...], part: str, n: int) -> tuple[int, ...]:
    """The shape of a saved array of an empty cache, with n slots."""
    return {"kv": (*shape[:2], n, *shape[3:]), "slots": (2, n)}.get(part, shape)


def check_slots(name: str, slots: Ints, length: int) -> None:
    """slots [2, n]: positions, and tokens in order, of a text of `length` tokens."""
    if slots.min() < 0 or (np.diff(slots[1]) < 0).any() or slots[1, -1] >= length:
        raise SessionError(f"cached values {name}: slots are not in order")
