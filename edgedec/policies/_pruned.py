"""Reading a prompt with fewer rows in the upper layers: the rows of all chunks stay pending until the end."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.cache import Cache
from edgedec.runtime import Adapter, Call, CallResult, Outputs, Rows

Ints = NDArray[np.int64]
Hidden = NDArray[np.float32]


class Stage:
    """Blocks of a stack on the rows of a prompt that are left there. rows: of a chain, with their numbers; hidden
    [rows, hidden_size]: what enters the blocks, None where they begin the stack."""

    def __init__(self, blocks: range, rows: Rows, hidden: Hidden | None) -> None:
        self.blocks, self.rows, self.hidden = blocks, rows, hidden
        self.out: Hidden | None = None
        self.last: CallResult | None = None

    def run(
        self, cache: Cache, most: int, window: int, keeps: bool, adapter: Adapter | None
    ) -> Generator[Call, Any, None]:
        """Chunk by chunk, the last `window` rows in one call that returns attention sums (`last`); `out`: the states
        after the blocks, if `keeps`."""
        n = len(self.rows)
        outputs = Outputs(hidden=(self.blocks[-1],) if keeps else ())
        for start, stop in cuts(n, most, window):
            wanted = outputs._replace(attention=stop == n)
            part, hidden = first_rows(self.rows, start, stop), None
            if self.hidden is not None:
                hidden = self.hidden[start:stop]
            done = yield Call(part, cache, self.blocks, hidden, wanted, adapter)
            if keeps:
                self._keep(done.result.hidden[self.blocks[-1]], start, n)
            self.last = done.result

    def _keep(self, states: Hidden, start: int, n: int) -> None:
        if self.out is None:
            self.out = np.empty((n, states.shape[1]), np.float32)
        self.out[start : start + len(states)] = states

    def above(self, blocks: range, chosen: Ints) -> Stage:
        """The next blocks on some of these rows, ascending."""
        assert self.out is not None
        return Stage(blocks, some_rows(self.rows, chosen), np.ascontiguousarray(self.out[chosen]))


def cuts(n: int, most: int, window: int) -> list[tuple[int, int]]:
    """Chunks of n rows, `most` each, the last `window` rows a chunk of their own.

    cuts(10, 4, 3) -> (0, 4) (4, 7) (7, 10)
    """
    edge = max(n - min(window, most), 0)
    starts = [*range(0, edge, most), edge]
    return list(zip(starts, [*starts[1:], n], strict=True))


def first_rows(rows: Rows, start: int, stop: int) -> Rows:
    """The first `stop` rows of a chain, of which those before `start` have been run."""
    numbers = None if rows.numbers is None else rows.numbers[:stop]
    given = None if rows.embeddings is None else rows.embeddings[start:stop]
    found = Rows(rows.tokens[:stop], rows.positions[:stop], rows.parents[:stop], start, None, numbers, given)
    found.__dict__["is_chain"] = True  # as `Rows.chain` does
    return found


def some_rows(rows: Rows, chosen: Ints) -> Rows:
    """Some rows of a chain: a chain of them, with the numbers and positions that they had."""
    m = len(chosen)
    return Rows(rows.tokens[chosen], rows.positions[chosen], np.arange(-1, m - 1), 0, None, rows.row_numbers()[chosen])
