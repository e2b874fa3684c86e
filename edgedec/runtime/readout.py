"""A readout: a subset of the vocabulary, for drafts that need only the best of these tokens (VocabTrim).

The head of a large vocabulary costs a draft as much as several layers. A quarter of its rows cost a quarter, and a
token that is left out is only not drafted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class Readout:
    """Tokens, ascending. Equal only to itself: a runtime keeps the rows of its head for each."""

    def __init__(self, tokens: Sequence[int] | NDArray[np.integer]) -> None:
        self.ids: NDArray[np.int32] = np.unique(np.asarray(tokens, np.int32))

    def __len__(self) -> int:
        return len(self.ids)

    def tokens(self, rows: NDArray[np.int32]) -> NDArray[np.int32]:
        """The tokens of rows of this readout; -1 stays -1."""
        return np.where(rows < 0, -1, self.ids[rows]).astype(np.int32)
