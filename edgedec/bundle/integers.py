"""The integer formats of weights: bits, what stands for zero, and how the codes of a row lie in bytes.

A weight is (code * step - zero) * scale. The step is 1 but for int2, whose four values are -3, -1, 1 and 3 times the
scale: none is spent on zero, and both signs have as many. nl4 and mx4 have a table of what their codes stand for.

int8 is a byte a code; int4 and nl4 two codes a byte, the first in the low nibble. The others are bit planes, words of
32 bits that a kernel shifts and masks to get the bytes of four inputs in a row:

* plane of four bits, a word for 8 codes: code 4 s + b in byte b at bits 4 s to 4 s + 3
* plane of two bits, a word for 16 codes: code 4 s + b in byte b at bits 2 s and 2 s + 1
* plane of one bit, a word for 32 codes: code 4 s + b in byte b at bit s

32 codes of int2 and uint2 are two words of two bits; of int3 the same (their low bits), then one word of one bit
(their high bit). Of int5 and mx4 four words of four bits, of int5 then one word of one bit; of int6 the same four, then
two of two bits.

int5, int6, nl4 and uint2 are those of GGUF files, whose integers are kept, and mx4 is MXFP4's 4-bit floats (OCP
Microscaling Formats 1.0: E2M1), as twice their values; no weights are rounded to them here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeGuard

import numpy as np
from numpy.typing import NDArray

Integers = Literal["int8", "int4", "int3", "int2", "int5", "int6", "nl4", "uint2", "mx4"]
Bytes = NDArray[np.uint8]

# fmt: off
BITS: dict[str, int] = {
    "int8": 8, "int4": 4, "int3": 3, "int2": 2, "int5": 5, "int6": 6, "nl4": 4, "uint2": 2, "mx4": 4,
}
_ZERO: dict[str, int] = {
    "int8": 128, "int4": 8, "int3": 4, "int2": 3, "int5": 16, "int6": 32, "nl4": 0, "uint2": 0, "mx4": 0,
}
NL4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
MX4_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
# fmt: on
# What the codes of a format stand for, where it is not the code less a number.
TABLES: dict[str, NDArray[np.int8]] = {"nl4": NL4_VALUES, "mx4": MX4_VALUES}
# The planes that the codes are in, the lowest bits first.
_PLANES: dict[str, tuple[int, ...]] = {
    **{"int2": (2,), "uint2": (2,), "int3": (2, 1)},
    **{"mx4": (4,), "int5": (4, 1), "int6": (4, 2)},
}
# Codes that lie together, so that a block is whole groups of them; of planes 32.
_TOGETHER: dict[str, int] = {"int8": 1, "int4": 2, "nl4": 2}


def is_integer(fmt: str) -> TypeGuard[Integers]:
    """Whether a weight format has integers and scales."""
    return fmt in BITS


def low_bits(formats: Iterable[str]) -> str:
    """Those of the formats that not every engine reads, in words; empty if there are none."""
    return " and ".join(sorted({fmt for fmt in formats if is_integer(fmt) and fmt not in ("int8", "int4")}))


def stands_for_zero(fmt: str) -> int:
    """What is taken off a code times its step, where no zero point is stored."""
    return _ZERO[fmt]


def step_of(fmt: str) -> int:
    """How many scales lie between a code and the next."""
    return 2 if fmt == "int2" else 1


def together(fmt: str) -> int:
    """Codes that are stored together: a block is a multiple of so many."""
    return _TOGETHER.get(fmt, 32)


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
    if fmt == "int4" or fmt == "nl4":
        return np.bitwise_or(codes[..., 0::2], codes[..., 1::2] << 4, dtype=np.uint8)
    groups = codes.reshape(*codes.shape[:-1], -1, 32)
    planes, at = list[Bytes](), 0
    for width in _PLANES[fmt]:
        words = _plane(groups >> at & np.uint8((1 << width) - 1), width)
        planes, at = [*planes, words.reshape(*groups.shape[:-1], -1)], at + width
    return np.concatenate(planes, axis=-1).reshape(*codes.shape[:-1], -1)


def unpacked(data: Bytes, fmt: str) -> Bytes:
    """bytes [..., m] -> codes uint8 [..., n]: what `packed` was given."""
    if fmt == "int8":
        return data
    if fmt == "int4" or fmt == "nl4":
        return np.stack([data & 15, data >> 4], axis=-1).reshape(*data.shape[:-1], -1)
    groups = data.reshape(*data.shape[:-1], -1, code_bytes(fmt, 32))
    codes, byte, at = np.zeros((*groups.shape[:-1], 32), np.uint8), 0, 0
    for width in _PLANES[fmt]:
        codes |= _codes(groups[..., byte : byte + 4 * width], width) << np.uint8(at)
        byte, at = byte + 4 * width, at + width
    return codes.reshape(*data.shape[:-1], -1)


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
    if fmt in TABLES:
        return TABLES[fmt].astype(np.float32)[codes]
    zero: Any = np.float32(_ZERO[fmt]) if zeros is None else zeros[..., None]
    return codes.astype(np.float32) * np.float32(step_of(fmt)) - zero


def filler(fmt: str) -> int:
    """A word of what stands for zero, for rows that are there to fill up a group: with a scale of 0 any would do."""
    return {"int8": 0x8080_8080, "int4": 0x8888_8888}.get(fmt, 0)
