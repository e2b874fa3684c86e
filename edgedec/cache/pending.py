"""Which rows of a pending tree may still be committed.

A tree begins with a call whose rows start at 0. Rows may be added, and other blocks may be run on the tree, until the
first of its rows is committed. A call whose rows start at 0 begins another tree if rows of this one are committed, or
if it runs a block that this tree has been run on: then all blocks forget the rows of this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from edgedec.errors import UsageError
from edgedec.runtime.rows import Rows


class PendingTree:
    """`size`: one more than the largest row number that was run; `done`: one more than the last that is committed."""

    def __init__(self) -> None:
        self.size = self.done = 0
        self._begun: set[int] = set()

    def write(self, blocks: Iterable[int], rows: Rows) -> bool:
        """Note the rows of a call of these blocks; True if they begin another tree while this one is pending."""
        if rows.first and self.done:
            raise UsageError(f"rows from {rows.first} on cannot be added: rows of that tree are committed already")
        another = rows.first == 0 and (self.done > 0 or not self._begun.isdisjoint(blocks))
        if another:
            self.reset()
        self._begun.update(blocks)
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
        self._begun.clear()
