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

from edgedec.bundle.manifest import LANES, Tensor

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


def packed_zeros(zeros: NDArray[np.uint8], tensor: Tensor) -> NDArray[np.uint8]:
    """Zero points [n, blocks] as `tensor` stores them. Nibbles: two blocks of a row in a byte, or, interleaved, rows 0
    to 7 of a group with 8 to 15."""
    if tensor.layout == "interleave16":
        zeros = pack(zeros, 8 if tensor.format == "int4" else 128)
        return zeros if tensor.format == "int8" else _two(zeros[..., :8], zeros[..., 8:])
    if tensor.format == "int8":
        return zeros
    even = np.pad(zeros, ((0, 0), (0, zeros.shape[1] % 2)))
    return _two(even[:, 0::2], even[:, 1::2])


def _two(low: NDArray[np.uint8], high: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.bitwise_or(low, high << 4, dtype=np.uint8)


def zeros_by_row(stored: NDArray[np.uint8], tensor: Tensor) -> NDArray[np.uint8]:
    """The zero points of a tensor [out, blocks], of what `packed_zeros` made."""
    n, blocks = tensor.shape[0], tensor.blocks
    if tensor.layout == "interleave16":
        stored = stored.reshape(tensor.groups, blocks, -1)
        if tensor.format == "int4":
            stored = np.concatenate([stored & 15, stored >> 4], axis=-1)
        return unpack(stored, 0, n)
    if tensor.format == "int8":
        return stored.reshape(n, blocks)
    return np.stack([stored & 15, stored >> 4], axis=-1).reshape(n, -1)[:, :blocks]
