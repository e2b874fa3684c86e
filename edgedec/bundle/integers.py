"""The integer formats of weights: bits, what stands for zero, and how the codes of a row lie in bytes.

A weight is (code * step - zero) * scale. The step is 1 but for int2, whose four values are -3, -1, 1 and 3 times the
scale: none is spent on zero, and both signs have as many.

int8 is a byte a code; int4 two codes a byte, the first in the low nibble. int2 and int3 are bit planes, words of 32
bits that a kernel shifts and masks to get the bytes of four inputs in a row:

* plane of two bits, a word for 16 codes: code 4 s + b in byte b at bits 2 s and 2 s + 1
* plane of one bit, a word for 32 codes: code 4 s + b in byte b at bit s

32 codes of int2 are two words of two bits; of int3 the same (their low bits), then one word of one bit (their high
bit).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeGuard

import numpy as np
from numpy.typing import NDArray

Integers = Literal["int8", "int4", "int3", "int2"]
Bytes = NDArray[np.uint8]

BITS: dict[str, int] = {"int8": 8, "int4": 4, "int3": 3, "int2": 2}
_ZERO: dict[str, int] = {"int8": 128, "int4": 8, "int3": 4, "int2": 3}
# Codes that lie together, so that a block is whole groups of them.
_TOGETHER: dict[str, int] = {"int8": 1, "int4": 2, "int3": 32, "int2": 32}


def is_integer(fmt: str) -> TypeGuard[Integers]:
    """Whether a weight format has integers and scales."""
    return fmt in BITS


def low_bits(formats: Iterable[str]) -> str:
    """Those of the formats that not every engine reads, in words; empty if there are none."""
    return " and ".join(sorted({fmt for fmt in formats if fmt in ("int3", "int2")}))


def stands_for_zero(fmt: str) -> int:
    """What is taken off a code times its step, where no zero point is stored."""
    return _ZERO[fmt]


def step_of(fmt: str) -> int:
    """How many scales lie between a code and the next."""
    return 2 if fmt == "int2" else 1


def together(fmt: str) -> int:
    """Codes that are stored together: a block is a multiple of so many."""
    return _TOGETHER[fmt]


def code_bytes(fmt: str, n: int) -> int:
    """Bytes of n codes."""
    return n * BITS[fmt] // 8


def packed(codes: Bytes, fmt: str) -> Bytes:
    """codes uint8 [..., n], n a multiple of `together` -> bytes [..., code_bytes(n)].

    >>> packed(np.array([3, 15], np.uint8), "int4").tolist()
    [243]
    """
    if fmt == "int8":
        return codes
    if fmt == "int4":
        return np.bitwise_or(codes[..., 0::2], codes[..., 1::2] << 4, dtype=np.uint8)
    low = _plane(codes & 3, 2)
    if fmt == "int2":
        return low.reshape(*codes.shape[:-1], -1)
    planes = np.concatenate([low.reshape(*codes.shape[:-1], -1, 8), _plane(codes >> 2, 1)], axis=-1)
    return planes.reshape(*codes.shape[:-1], -1)


def unpacked(data: Bytes, fmt: str) -> Bytes:
    """bytes [..., m] -> codes uint8 [..., n]: what `packed` was given."""
    if fmt == "int8":
        return data
    if fmt == "int4":
        return np.stack([data & 15, data >> 4], axis=-1).reshape(*data.shape[:-1], -1)
    if fmt == "int2":
        return _codes(data, 2)
    planes = data.reshape(*data.shape[:-1], -1, 12)
    codes = _codes(planes[..., :8], 2) | _codes(planes[..., 8:], 1) << 2
    return codes.reshape(*data.shape[:-1], -1).astype(np.uint8)


def _plane(bits: Any, width: int) -> Bytes:
    """Numbers of `width` bits [..., n] -> words of a plane [..., n * width / 32, 4]."""
    per = 8 // width
    parts = bits.reshape(*bits.shape[:-1], -1, per, 4)
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    words: Bytes = np.bitwise_or.reduce(parts << shifts, axis=-2).astype(np.uint8)
    return words


def _codes(plane: Bytes, width: int) -> Bytes:
    """The way back: bytes [..., m] -> numbers of `width` bits [..., m * 8 / width]."""
    words = plane.reshape(*plane.shape[:-1], -1, 1, 4)
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    found: Bytes = (words >> shifts & np.uint8((1 << width) - 1)).reshape(*plane.shape[:-1], -1)
    return found


def values(codes: Bytes, fmt: str, zeros: Bytes | None = None) -> NDArray[np.float32]:
    """codes [..., blocks, block] -> multiples of the scales, float32; zeros [..., blocks]: zero points."""
    zero: Any = np.float32(_ZERO[fmt]) if zeros is None else zeros[..., None]
    return codes.astype(np.float32) * np.float32(step_of(fmt)) - zero


def filler(fmt: str) -> int:
    """A word of what stands for zero, for rows that are there to fill up a group: with a scale of 0 any would do."""
    return {"int8": 0x8080_8080, "int4": 0x8888_8888}.get(fmt, 0)
