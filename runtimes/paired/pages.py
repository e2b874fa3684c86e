"""Numbers for the pages of a text that lies in two caches, so that what forks share is counted once.

The pages of each cache have numbers of their own, and a text that is handed over comes to lie in others. What is shared
stays the same: forks hand over before they part.
"""

from __future__ import annotations

from itertools import count

import numpy as np
from numpy.typing import NDArray

_next = count()


class PageNumbers:
    """Of the pages of `slots` that hold a text; none without pages (slots 0)."""

    def __init__(self, slots: int) -> None:
        self._slots, self._numbers, self._shared = slots, list[int](), False

    def grow(self, before: int, after: int) -> None:
        """Slots `before` to `after` were written: a page that a fork holds as well was copied first."""
        if not self._slots:
            return
        if before % self._slots and self._shared:
            self._numbers[before // self._slots] = next(_next)
        self._shared = self._shared and after == before
        while len(self._numbers) * self._slots < after:
            self._numbers.append(next(_next))

    def cut(self, slots: int) -> None:
        """So many slots are left."""
        if self._slots:
            del self._numbers[-(-slots // self._slots) :]

    def anew(self, slots: int) -> None:
        """All of them were written."""
        self.cut(0)
        self._shared = False
        self.grow(0, slots)

    def fork(self) -> PageNumbers:
        """The same pages, for another text."""
        twin = PageNumbers(self._slots)
        twin._numbers, twin._shared, self._shared = list(self._numbers), True, True
        return twin

    def ids(self) -> NDArray[np.int64]:
        return np.array(self._numbers, np.int64)
