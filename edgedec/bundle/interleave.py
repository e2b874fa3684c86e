"""The packed layout of quantized matrices: 16 rows side by side, word by word.

A CPU kernel works on 16 outputs at once, one in each 32-bit lane of its registers. Packed, what it needs
for one step (four bytes of each of the 16 rows: 8 inputs of int4, 4 of int8) is one line of 64 bytes, and a
matrix is read from front to back. Words are moved and never changed, so packing costs nothing but itself.

Here a row is a row of words: four bytes of data are a uint32, a scale is a float16.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.manifest import LANES

Words = NDArray[Any]


def pack(rows: Words, fill: int) -> Words:
    """rows [n, w] -> [groups, w, 16]; rows that the last group lacks are made of `fill`.

    With 2 lanes for 16, `pack([[1, 2], [3, 4], [5, 6]], 0)` is `[[[1, 3], [2, 4]], [[5, 0], [6, 0]]]`.
    """
    short = -len(rows) % LANES
    if short:
        rows = np.concatenate([rows, np.full((short, rows.shape[1]), fill, rows.dtype)])
    return np.ascontiguousarray(rows.reshape(-1, LANES, rows.shape[1]).transpose(0, 2, 1))


def unpack(packed: Words, start: int, stop: int) -> Words:
    """packed [groups, w, 16] -> rows start..stop [stop - start, w]; only their groups are read."""
    first = start // LANES
    part = packed[first : -(-stop // LANES)].transpose(0, 2, 1)
    return np.ascontiguousarray(part).reshape(-1, packed.shape[1])[start - first * LANES : stop - first * LANES]


def pick(packed: Words, rows: NDArray[np.int64]) -> Words:
    """packed [groups, w, 16] -> the rows that `rows` [n] names [n, w]; only their words are read."""
    groups, lanes = np.divmod(rows, LANES)
    return np.ascontiguousarray(packed[groups, :, lanes])
