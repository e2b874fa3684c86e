"""Weights of other formats than int4 and int8 as ONNX nodes: their codes become those of int4 or int8 with the same
values.

ONNX Runtime multiplies by 4 bits what is stored in fewer. The operands are constants, so it makes them once, when it
loads a graph: a bundle of int2 is small on the disk and takes the memory of int4. How the planes lie in bytes is
written in `bundle/integers.py`; the codes c of int4 stand for (c - 8) * scale, so

    int3  (q - 4) * scale    c = q + 4    its low two bits, then 8 if the high bit is set, else 4
    int2  (2 q - 3) * scale  c = 2 q + 5  its low bit times 2, plus 8 if the high bit is set, else 4, plus 1

and the codes c of int8 for (c - 128) * scale:

    int5   (q - 16) * scale  c = q + 112  its low bits, then 128 if the high bit is set, else 64 + 32 + 16
    int6   (q - 32) * scale  c = q + 96   its low bits, then 128 if the high bit is set, else 64 + 32
    uint2  q * scale         c = q + 128
    nl4    table[q] * scale  c = table[q] + 128; likewise mx4

All take nothing but operations on bits, which every engine has for bytes, and a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.integers import TABLES
from edgedec.bundle.manifest import Tensor

_TOGETHER = 32
_INT32 = 6  # of ONNX


class Nodes(Protocol):
    """What is used of a graph."""

    def node(self, op: str, inputs: Sequence[str], **attributes: Any) -> str: ...
    def constant(self, array: NDArray[Any]) -> str: ...
    def reshaped(self, x: str, shape: Sequence[int]) -> str: ...
    def split(self, x: str, sizes: Sequence[int]) -> list[str]: ...


def bits_for(fmt: str) -> int:
    """Bits of the codes that ONNX Runtime multiplies by."""
    return 4 if fmt in ("int4", "int3", "int2") else 8


def stored_codes(g: Nodes, data: str, tensor: Tensor) -> str:
    """data uint8 [out, ...] of all rows as stored -> [out, blocks, bytes of a block]: two codes of int4 in a byte, the
    first in its low nibble, or a code of int8."""
    n = tensor.shape[0]
    codes = codes_of(g, g.reshaped(data, [n, 1, -1]), tensor)
    if bits_for(tensor.format) == 8:
        return g.reshaped(codes, [n, tensor.blocks, tensor.block])
    low, high = g.split(g.reshaped(codes, [n, tensor.blocks, -1, 2]), [1, 1])
    both = g.node("BitwiseOr", [low, _shifted(g, high, 4, "LEFT")])
    return g.reshaped(both, [n, tensor.blocks, -1])


def codes_of(g: Nodes, data: str, tensor: Tensor) -> str:
    """data uint8 [a, b, ...] as stored -> codes of int4 or int8 [a, b, codes], one a byte. What comes after a and b is
    the bytes of whole groups of 32 codes."""
    groups = g.reshaped(data, [0, 0, -1, tensor.block_bytes * _TOGETHER // tensor.block])
    if tensor.format == "int2":
        q = _plane(g, groups, 2)
        low, high = _masked(g, q, 1), _masked(g, q, 2)
        ends = g.node("BitwiseOr", [_shifted(g, low, 1, "LEFT"), g.constant(np.array(1, np.uint8))])
        return g.reshaped(g.node("BitwiseOr", [ends, _sign(g, high, 2)]), [0, 0, -1])
    if tensor.format != "int3":
        return g.reshaped(_bytes(g, groups, tensor.format), [0, 0, -1])
    twos, ones = g.split(groups, [8, 4])
    low, high = _plane(g, twos, 2), _plane(g, ones, 1)
    return g.reshaped(g.node("BitwiseOr", [low, _sign(g, high, 1)]), [0, 0, -1])


def _bytes(g: Nodes, groups: str, fmt: str) -> str:
    """Groups of 32 codes as stored -> codes of int8."""
    if fmt == "uint2":
        return g.node("BitwiseOr", [_plane(g, groups, 2), g.constant(np.array(128, np.uint8))])
    if fmt in TABLES:
        nibbles = _plane(g, groups, 4) if fmt == "mx4" else _nibbles(g, groups)
        table = g.constant((TABLES[fmt].astype(np.int16) + 128).astype(np.uint8))
        return g.node("Gather", [table, g.node("Cast", [nibbles], to=_INT32)])
    fours, rest = g.split(groups, [16, 4 if fmt == "int5" else 8])
    low, high = _plane(g, fours, 4), _plane(g, rest, 1 if fmt == "int5" else 2)
    # The high bit is that of 16 or 32: where it is set 128, else all bits from it to 64.
    top, by = _masked(g, high, 1 if fmt == "int5" else 2), 4
    bit = _shifted(g, top, by, "LEFT")
    value = 16 if fmt == "int5" else 32
    inverse = g.node("BitwiseXor", [bit, g.constant(np.array(value, np.uint8))])
    filled = [_shifted(g, inverse, i, "LEFT") for i in range(3 if fmt == "int5" else 2)]
    pieces = [low, *filled, _shifted(g, bit, 3 if fmt == "int5" else 2, "LEFT")]
    pieces += [] if fmt == "int5" else [_shifted(g, _masked(g, high, 1), 4, "LEFT")]
    found = pieces[0]
    for piece in pieces[1:]:
        found = g.node("BitwiseOr", [found, piece])
    return found


def _nibbles(g: Nodes, data: str) -> str:
    """The codes of bytes [a, b, groups, bytes], the low nibble first: [a, b, codes / 2, 2]."""
    both = g.reshaped(data, [0, 0, -1, 1])
    return g.node("Concat", [_masked(g, both, 15), _shifted(g, both, 4, "RIGHT")], axis=-1)


def _sign(g: Nodes, bit: str, value: int) -> str:
    """8 where a bit of this value is set, 4 where not."""
    inverse = g.node("BitwiseXor", [bit, g.constant(np.array(value, np.uint8))])
    one = value.bit_length()  # 1 for the lowest bit
    return g.node("BitwiseOr", [_shifted(g, bit, 4 - one, "LEFT"), _shifted(g, inverse, 3 - one, "LEFT")])


def _plane(g: Nodes, data: str, width: int) -> str:
    """Words of a plane, uint8 [a, b, groups, bytes] -> numbers of `width` bits [a, b, groups, 32]."""
    count = 8 // width
    # A word has `count` numbers a byte: the lowest bits of its four bytes come first.
    words = g.reshaped(data, [0, 0, -1, 1, 4])
    shifts = g.constant(np.arange(0, 8, width, dtype=np.uint8).reshape(count, 1))
    numbers = _masked(g, g.node("BitShift", [words, shifts], direction="RIGHT"), (1 << width) - 1)
    return g.reshaped(numbers, [0, 0, -1, _TOGETHER])


def _masked(g: Nodes, x: str, bits: int) -> str:
    return g.node("BitwiseAnd", [x, g.constant(np.array(bits, np.uint8))])


def _shifted(g: Nodes, x: str, by: int, direction: str) -> str:
    return g.node("BitShift", [x, g.constant(np.array(by, np.uint8))], direction=direction) if by else x
