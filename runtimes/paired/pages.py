"""Page numbers of a text in two caches, so that pages shared by forks are counted once.

Each cache numbers its pages itself, and a handover changes the pages of a text. These numbers do not change, because
the text is handed over before a fork.
"""

from __future__ import annotations

from itertools import count

import numpy as np
from numpy.typing import NDArray

_next = count()


class PageNumbers:
    """Numbers of the pages of a text, with `slots` slots each; none if the caches have no pages (0)."""

    def __init__(self, slots: int) -> None:
        self._slots, self._numbers, self._shared = slots, list[int](), False

    def grow(self, before: int, after: int) -> None:
        """Slots `before` to `after` were written; a page shared with a fork was copied first."""
        if not self._slots:
            return
        if before % self._slots and self._shared:
            self._numbers[before // self._slots] = next(_next)
        self._shared = self._shared and after == before
        while len(self._numbers) * self._slots < after:
            self._numbers.append(next(_next))

    def cut(self, slots: int) -> None:
        """The text was truncated to so many slots."""
        if self._slots:
            del self._numbers[-(-slots // self._slots) :]

    def anew(self, slots: int) -> None:
        """All pages were rewritten."""
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
