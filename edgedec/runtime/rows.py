"""Rows: one token each, at one position, with one parent. A chain is the simple tree.

The rows of a call lie in the cache behind the `length` committed tokens, in order; a parent
comes before its children; parent -1 is the last committed token. `first` lets a tree grow:
rows before it were run by an earlier call and only those from `first` on are computed now.

Worked example, a tree of four rows behind three committed tokens:

    Rows.tree([7, 8, 9, 5], parents=[-1, 0, 0, 2], start=3)
    positions 3 4 4 5        7 ─┬─ 8
                                └─ 9 ── 5

    ancestors()  1 0 0 0     row 0 sees itself
                 1 1 0 0     row 1 sees its parent and itself
                 1 0 1 0
                 1 0 1 1     (every row also sees all committed tokens)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UsageError


@dataclass(frozen=True)
class Rows:
    """tokens, positions, parents: int64 [n]; `first`: the rows before it are already in the cache."""

    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    parents: NDArray[np.int64]
    first: int = 0

    @classmethod
    def chain(cls, tokens: Sequence[int] | NDArray[np.int64], start: int) -> Rows:
        """Rows one after another, the first at position `start`."""
        ids = np.asarray(tokens, np.int64)
        n = len(ids)
        rows = cls(ids, np.arange(start, start + n), np.arange(-1, n - 1))
        rows.__dict__["is_chain"] = True  # decoding makes one for every token
        return rows

    @classmethod
    def tree(cls, tokens: Sequence[int], parents: Sequence[int], start: int) -> Rows:
        """A tree by parent numbers; rows with parent -1 stand at position `start`."""
        depth = np.zeros(len(tokens), np.int64)
        for i, parent in enumerate(parents):
            if not -1 <= parent < i:
                raise UsageError(f"row {i}: parent {parent} does not come before it")
            depth[i] = 0 if parent < 0 else depth[parent] + 1
        return cls(np.asarray(tokens, np.int64), start + depth, np.asarray(parents, np.int64))

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def count(self) -> int:
        """Rows computed by this call."""
        return len(self.tokens) - self.first

    @cached_property
    def is_chain(self) -> bool:
        return bool(np.array_equal(self.parents, np.arange(-1, len(self) - 1)))

    def grown(self, tokens: Sequence[int], parents: Sequence[int]) -> Rows:
        """This tree with more rows; only the new ones are computed by the next call."""
        start = int(self.positions[0]) if len(self) else 0
        tree = Rows.tree([*self.tokens.tolist(), *tokens], [*self.parents.tolist(), *parents], start)
        return Rows(tree.tokens, tree.positions, tree.parents, first=len(self))

    def ancestors(self) -> NDArray[np.bool_]:
        """bool [count, n]: row `first + r` sees row j (itself included)."""
        n = len(self)
        if self.is_chain:
            return np.tri(n, dtype=bool)[self.first :]
        sees = np.eye(n, dtype=bool)
        for i, parent in enumerate(self.parents):
            if parent >= 0:
                sees[i] |= sees[parent]
        return sees[self.first :]

    def mask(self, length: int, window: int | None = None) -> NDArray[np.bool_]:
        """bool [count, length + n]: what each computed row may attend to, `length` tokens being committed."""
        sees = np.concatenate([np.ones((self.count, length), bool), self.ancestors()], axis=1)
        if window is not None:
            keys = np.concatenate([np.arange(length), self.positions])
            sees &= keys[None, :] > self.positions[self.first :, None] - window
        return sees

    def children(self, row: int) -> NDArray[np.int64]:
        """The rows whose parent is `row` (-1: the roots)."""
        return np.flatnonzero(self.parents == row)
