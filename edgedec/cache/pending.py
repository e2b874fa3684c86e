"""The rows of a pending tree that may still be committed.

A tree begins with a call whose rows start at 0. Rows may be added, and blocks may be run on the tree (again), until
the first of its rows is committed. Then the next call whose rows start at 0 begins another tree, and all blocks forget
what is left of this one. `Cache.rollback` ends a tree without a commit.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.cache.rows import Rows
from edgedec.errors import UsageError


class PendingTree:
    """`size`: one more than the largest row number that was run; `done`: one more than the last that is committed."""

    def __init__(self) -> None:
        self.size = self.done = 0

    def write(self, rows: Rows) -> bool:
        """Note the rows of a call; True if they begin another tree while rows of this one are left."""
        if rows.first and self.done:
            raise UsageError(f"rows from {rows.first} on cannot be added: rows of that tree are committed already")
        another = self.done > 0
        if another:
            self.reset()
        if len(rows):
            self.size = max(self.size, int(rows.row_numbers()[-1]) + 1)
        return another

    def commit(self, rows: Sequence[int]) -> None:
        """UsageError unless these rows are pending, ascending and after those that are committed."""
        before = self.done - 1
        for row in rows:
            if not before < row < self.size:
                raise UsageError(
                    f"row {row} cannot be committed: rows {self.done} to {self.size - 1} are pending, to be given in "
                    "ascending order"
                )
            before = row
        self.done = before + 1

    def reset(self) -> None:
        """No row is pending."""
        self.size = self.done = 0
