"""The experts that a pre_router block chose for pending rows (`spec.pre_router`), for the mixtures after it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from edgedec.cache.rows import Rows

Ints = NDArray[np.int64]


class GivenExperts:
    """pending: raises UsageError unless a block has run on the rows of a call."""

    def __init__(self, pending: Callable[[int, Rows], object]) -> None:
        self._pending, self._chosen = pending, dict[int, Ints]()

    def give(self, block: int, rows: Rows, experts: Ints) -> None:
        """Keep the experts of the computed rows of a call, as block `block` chose them."""
        before = self._chosen.get(block, np.zeros(0, np.int64))[: rows.first]
        self._chosen[block] = np.concatenate([before, experts])

    def of(self, block: int, rows: Rows) -> Ints:
        """The experts of the computed rows of a call; UsageError unless this call or one before has run the block on
        them."""
        self._pending(block, rows)
        return self._chosen[block][rows.first : len(rows)]
