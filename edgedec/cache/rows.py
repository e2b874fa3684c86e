"""Rows: one token each, at one position, with one parent. A chain is the simple tree.

The rows of a call come after the committed tokens; a parent comes before its children; parent -1 is the last committed
token. `first` lets a tree grow: rows before it were run by an earlier call and only those from `first` on are
computed now.

Worked example, a tree of four rows after three committed tokens:

    Rows.tree([7, 8, 9, 5], parents=[-1, 0, 0, 2], start=3)
    positions 3 4 4 5        7 ─┬─ 8
                                └─ 9 ── 5

    visible()    1 0 0 0     row 0 sees itself
                 1 1 0 0     row 1 sees its parent and itself
                 1 0 1 0
                 1 0 1 1     (every row also sees all committed tokens)

Rows of one group see each other: with groups [-1, 0, -1, 0] rows 1 and 3 both see rows 0 to 3, what either of them
sees alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UsageError

Ints = NDArray[np.int64]

# Fields of rows that most do not have.
_USUAL = {"first": 0, "groups": None, "numbers": None, "embeddings": None, "types": None}


@dataclass(frozen=True)
class Rows:
    """tokens, positions, parents: int64 [n]; `first`: the rows before it are already in the cache.

    `groups` [n]: rows of one group (-1: of none) see what any of them sees. `numbers` [n], ascending: the rows'
    numbers in the tree that the cache keeps, if they are not 0 to n-1: a block may be run on fewer rows than others.
    `embeddings` float32 [count, hidden_size] take the place of the tokens' own. `types` [n]: of tokens (0 if None),
    where a text encoder has several.
    """

    tokens: Ints
    positions: Ints
    parents: Ints
    first: int = 0
    groups: Ints | None = None
    numbers: Ints | None = None
    embeddings: NDArray[np.float32] | None = None
    types: Ints | None = None

    @classmethod
    def chain(cls, tokens: Sequence[int] | Ints, start: int) -> Rows:
        """Rows one after another, the first at position `start`."""
        ids = np.asarray(tokens, np.int64)
        n = len(ids)
        rows = cls.__new__(cls)
        # Decoding makes one for every token: filled at once, its fields and what is known of a chain.
        rows.__dict__.update(
            _USUAL,
            tokens=ids,
            positions=np.arange(start, start + n),
            parents=np.arange(-1, n - 1),
            is_chain=True,
        )
        return rows

    @classmethod
    def singles(cls, tokens: Sequence[int], starts: Sequence[int]) -> list[Rows]:
        """`chain` of one token for each of several texts, at the position where that goes on."""
        ids, positions = np.array(tokens, np.int64)[:, None], np.array(starts, np.int64)[:, None]
        known = {**_USUAL, "parents": np.array([-1]), "is_chain": True}
        made = [cls.__new__(cls) for _ in tokens]
        for rows, own, position in zip(made, ids, positions, strict=True):
            rows.__dict__.update(known, tokens=own, positions=position)
        return made

    @classmethod
    def tree(cls, tokens: Sequence[int], parents: Sequence[int], start: int) -> Rows:
        """A tree by parent numbers; rows with parent -1 stand at position `start`."""
        positions, chain = [start] * len(tokens), True
        for i, parent in enumerate(parents):
            if not -1 <= parent < i:
                raise UsageError(f"row {i}: parent {parent} does not come before it")
            if parent >= 0:
                positions[i] = positions[parent] + 1
            chain &= parent == i - 1
        rows = cls.__new__(cls)
        rows.__dict__.update(
            _USUAL,
            tokens=np.array(tokens, np.int64),
            positions=np.array(positions, np.int64),
            parents=np.array(parents, np.int64),
            is_chain=chain,
        )
        return rows

    @classmethod
    def text(
        cls, tokens: Ints | None, embeddings: NDArray[np.float32] | None = None, types: Ints | None = None
    ) -> Rows:
        """A whole text whose rows see each other: of tokens [n] and their types, or of embeddings [n, hidden_size]."""
        values = None if embeddings is None else np.ascontiguousarray(embeddings, np.float32)
        n = len(tokens) if tokens is not None else 0 if values is None else len(values)
        ids = np.zeros(n, np.int64) if tokens is None else np.asarray(tokens, np.int64)
        rows = cls.__new__(cls)
        rows.__dict__.update(
            _USUAL,
            tokens=ids,
            positions=np.arange(n),
            parents=np.arange(-1, n - 1),
            groups=np.zeros(n, np.int64),
            embeddings=values,
            types=types,
            is_chain=False,
            is_text=True,
            from_zero=True,
        )
        return rows

    @classmethod
    def embedded(cls, embeddings: NDArray[np.float32], start: int) -> Rows:
        """A chain of rows given by their embeddings [n, hidden_size] instead of tokens."""
        n = len(embeddings)
        values = np.ascontiguousarray(embeddings, np.float32)
        return cls(np.zeros(n, np.int64), np.arange(start, start + n), np.arange(-1, n - 1), embeddings=values)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def count(self) -> int:
        """Rows computed by this call."""
        return len(self.tokens) - self.first

    @cached_property
    def is_chain(self) -> bool:
        return self.groups is None and bool(np.array_equal(self.parents, np.arange(-1, len(self) - 1)))

    @cached_property
    def is_text(self) -> bool:
        """Whether they are all the rows of one group: a whole text whose rows see each other."""
        groups = self.groups
        return groups is not None and not self.first and bool((groups >= 0).all() and (groups == groups[:1]).all())

    @cached_property
    def from_zero(self) -> bool:
        """Whether their positions are 0, 1, 2, …"""
        return bool(np.array_equal(self.positions, np.arange(len(self))))

    def row_numbers(self) -> Ints:
        """The numbers of all rows in the cache's tree."""
        return np.arange(len(self)) if self.numbers is None else self.numbers

    def head(self, n: int) -> Rows:
        """The first n rows of a tree that nothing of has been run."""
        return self if n >= len(self) else Rows(self.tokens[:n], self.positions[:n], self.parents[:n])

    def extend(self, tokens: Sequence[int], parents: Sequence[int]) -> Rows:
        """This tree with more rows, each one position after its parent; only the new ones are computed by the next
        call."""
        n, more = len(self), len(tokens)
        positions, start = self.positions.tolist(), int(self.positions[0]) if n else 0
        for i, parent in enumerate(parents, n):
            if not -1 <= parent < i:
                raise UsageError(f"row {i}: parent {parent} does not come before it")
            positions.append(start if parent < 0 else positions[parent] + 1)
        numbers = self.row_numbers()
        after = int(numbers[-1]) + 1 if n else 0
        return Rows(
            np.concatenate([self.tokens, np.asarray(tokens, np.int64)]),
            np.asarray(positions, np.int64),
            np.concatenate([self.parents, np.asarray(parents, np.int64)]),
            first=n,
            groups=None if self.groups is None else np.concatenate([self.groups, np.full(more, -1)]),
            numbers=None if self.numbers is None else np.concatenate([numbers, np.arange(after, after + more)]),
        )

    def select(self, chosen: Sequence[int]) -> Rows:
        """Some of these rows, ascending, as a block sees them that is run on no others: a row's parent is the nearest
        chosen ancestor; numbers and positions stay.

            chain of 4, select([0, 3]) -> parents -1 0, positions 0 3, numbers 0 3
        """
        at = {-1: -1} | {row: i for i, row in enumerate(chosen)}
        parents = []
        for row in chosen:
            parent = int(self.parents[row])
            while parent not in at:
                parent = int(self.parents[parent])
            parents.append(at[parent])
        index = np.asarray(chosen, np.int64)
        groups = None if self.groups is None else self.groups[index]
        first = int(np.searchsorted(index, self.first))
        embeddings = None if self.embeddings is None else self.embeddings[index[first:] - self.first]
        return Rows(
            self.tokens[index],
            self.positions[index],
            np.array(parents, np.int64),
            first,
            groups,
            self.row_numbers()[index],
            embeddings,
        )

    def visible(self) -> NDArray[np.bool_]:
        """bool [count, n]: row `first + r` sees row j (itself included)."""
        n = len(self)
        if self.is_text:
            return np.ones((n, n), bool)
        if self.is_chain:
            return np.tri(n, dtype=bool)[self.first :]
        sees = np.eye(n, dtype=bool)
        for i, parent in enumerate(self.parents):
            if parent >= 0:
                sees[i] |= sees[parent]
        for group in set() if self.groups is None else set(self.groups.tolist()) - {-1}:
            members = self.groups == group
            sees[members] = sees[members].any(axis=0) | members
        return sees[self.first :]

    def mask(
        self, committed: Ints, window: int | None = None, sinks: int = 0, ahead: int | None = None
    ) -> NDArray[np.bool_]:
        """bool [count, slots + n]: what each computed row may attend to. committed [slots]: positions of the slots
        that are committed. A window hides positions of a row's own minus `window` and below, but never the first
        `sinks`. ahead: also hides positions of its own plus that and above."""
        sees = np.concatenate([np.ones((self.count, len(committed)), bool), self.visible()], axis=1)
        if window is not None:
            keys = np.concatenate([committed, self.positions])
            sees &= (keys[None, :] > self.positions[self.first :, None] - window) | (keys < sinks)[None, :]
        if ahead is not None:
            keys = np.concatenate([committed, self.positions])
            sees &= keys[None, :] < self.positions[self.first :, None] + ahead
        return sees

    def children(self, row: int) -> Ints:
        """The rows whose parent is `row` (-1: the roots)."""
        return np.flatnonzero(self.parents == row)
