"""Blocks of ggml's types as floats, in float32 arithmetic step by step as ggml's own reference computes them.

A function takes the blocks of one type, uint8 [n, bytes of a block], and gives their values, float32 [n, values].
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.integers import NL4_VALUES
from edgedec.export.gguf.types import BLOCK, BY_NAME, LEAST, SUPER, GgmlType
from edgedec.export.quantized.mxfp4 import VALUES, in_halves

Bytes = NDArray[np.uint8]
Float = NDArray[np.float32]
# Blocks worked on at a time: with its temporaries a chunk stays inside a core's cache.
_CHUNK = 1 << 17
_NONLINEAR = NL4_VALUES.astype(np.float32)
_SIGNS = np.array([1, -1], np.float32)  # Q2_K takes its minimums off


def dequantize(kind: GgmlType, rows: Bytes) -> Float:
    """Rows of a tensor as stored, uint8 [n, bytes of a row], as float32 [n, width].

    >>> from edgedec.export.gguf.types import BY_NAME
    >>> one = np.float16(0.5).tobytes() + bytes([0x98] * 16)
    >>> dequantize(BY_NAME["Q4_0"], np.frombuffer(one, np.uint8)[None])[0, [0, 16]].tolist()
    [0.0, 0.5]
    """
    n, width = len(rows), rows.shape[1] // kind.size * kind.block
    blocks, out = rows.reshape(-1, kind.size), np.empty((n * width // kind.block, kind.block), np.float32)
    step = max(1, _CHUNK // kind.block)
    with np.errstate(all="ignore"):  # the reader refuses values that are not finite
        for at in range(0, len(blocks), step):
            out[at : at + step] = FUNCTIONS[kind.name](blocks[at : at + step])
    return out.reshape(n, width)


def _view(blocks: Bytes, start: int, stop: int, dtype: Any) -> NDArray[Any]:
    """Bytes start..stop of each block as numbers of `dtype`."""
    return np.ascontiguousarray(blocks[:, start:stop]).view(dtype)


def _half(blocks: Bytes, at: int) -> Float:
    """The float16 at a byte of each block: [n, 1]."""
    return _view(blocks, at, at + 2, "<f2").astype(np.float32)


def _f32(blocks: Bytes) -> Float:
    return _view(blocks, 0, 4, "<f4")


def _f16(blocks: Bytes) -> Float:
    return _half(blocks, 0)


def _bf16(blocks: Bytes) -> Float:
    return (_view(blocks, 0, 2, "<u2").astype(np.uint32) << 16).view(np.float32)


def _nibbles(stored: Bytes) -> Bytes:
    """Low nibbles of all bytes [n, k], then their high ones: [n, 2k]."""
    return np.concatenate([stored & 15, stored >> 4], axis=1)


def _fifth(blocks: Bytes, at: int) -> Bytes:
    """The 32 bits from byte `at` on, as 0 or 16: [n, 32]."""
    return np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little") << np.uint8(4)


def _q4_0(blocks: Bytes) -> Float:
    return (_nibbles(blocks[:, 2:]).astype(np.float32) - np.float32(8)) * _half(blocks, 0)


def _q5_0(blocks: Bytes) -> Float:
    q = _nibbles(blocks[:, 6:]) | _fifth(blocks, 2)
    return (q.astype(np.float32) - np.float32(16)) * _half(blocks, 0)


def _q8_0(blocks: Bytes) -> Float:
    return _view(blocks, 2, 34, np.int8).astype(np.float32) * _half(blocks, 0)


def _planes(stored: Bytes, bits: int) -> Bytes:
    """Fields of so many bits [n, 2, fields of a byte, bytes of a half]: all lowest fields of a half first.

    Two-bit fields of 64 bytes are those of bytes 0 to 31, then those of bytes 32 to 63.
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8).reshape(1, 1, -1, 1)
    return stored.reshape(len(stored), 2, 1, -1) >> shifts & np.uint8((1 << bits) - 1)


def in_parts(name: str, blocks: Bytes) -> tuple[Bytes, Bytes, Float]:
    """Blocks of a type of `PARTED`: codes [n, 16, 16], parts of scales [n, 16], and the scale of all 256 values [n, 1],
    of Q2_K with that of their offsets [n, 2]: what `Tensor.parts` stands for."""
    if name == "Q2_K":
        return _planes(blocks[:, 16:80], 2).reshape(-1, 16, 16), blocks[:, :16], _view(blocks, 80, 84, "<f2") * _SIGNS
    if name == "Q3_K":
        parts = (_q3_scales(blocks[:, 96:108]) - np.uint8(32)).astype(np.uint8)
        return _q3_codes(blocks), parts, _half(blocks, 108)
    return _q6_codes(blocks), blocks[:, 192:208], _half(blocks, 208)


def coded(name: str, blocks: Bytes, where: str = "") -> tuple[Bytes, Float]:
    """Blocks of IQ4_NL, IQ4_XS, MXFP4 or Q5_0 as codes [n, parts, 32] and scales [n, parts]; where: the tensor."""
    if name == "MXFP4":
        codes, scales, _ = in_halves(_nibbles(blocks[:, 1:])[:, None], blocks[:, :1], where)
        return codes, scales
    if name == "Q5_0":
        return (_nibbles(blocks[:, 6:]) | _fifth(blocks, 2))[:, None], _half(blocks, 0)
    if name == "IQ4_NL":
        return _nibbles(blocks[:, 2:])[:, None], _half(blocks, 0)
    return _nibbles(blocks[:, 8:].reshape(-1, 16)).reshape(-1, 8, BLOCK), _xs_steps(blocks)


def _q2_k(blocks: Bytes) -> Float:
    scales, q = blocks[:, :16], _planes(blocks[:, 16:80], 2).reshape(-1, 16, 16).astype(np.float32)
    steps, mins = _half(blocks, 80) * (scales & 15), _half(blocks, 82) * (scales >> 4)
    return (steps[:, :, None] * q - mins[:, :, None]).reshape(-1, SUPER)


def _q3_k(blocks: Bytes) -> Float:
    steps = _half(blocks, 108) * (_q3_scales(blocks[:, 96:108]).astype(np.float32) - np.float32(32))
    return (steps[:, :, None] * (_q3_codes(blocks).astype(np.float32) - np.float32(4))).reshape(-1, SUPER)


def _q3_codes(blocks: Bytes) -> Bytes:
    """The values plus 4: [n, 16, 16]."""
    high = blocks[:, None, :32] >> np.arange(8, dtype=np.uint8).reshape(1, 8, 1) & np.uint8(1)
    found: Bytes = _planes(blocks[:, 32:96], 2).reshape(-1, 8, 32) | high << np.uint8(2)
    return found.reshape(-1, 16, 16)


def _q3_scales(stored: Bytes) -> Bytes:
    """Sixteen scales of six bits [n, 16] of 12 bytes: four bits of each in the first eight, two in the last four."""
    low = _nibbles(stored[:, :8])
    high = stored[:, None, 8:] >> np.arange(0, 8, 2, dtype=np.uint8).reshape(1, 4, 1) & np.uint8(3)
    return low | high.reshape(-1, 16) << np.uint8(4)


def _scales_and_mins(stored: Bytes) -> tuple[Bytes, Bytes]:
    """Eight scales and eight minimums of six bits, each [n, 8], of 12 bytes."""
    first, second, rest = stored[:, 0:4], stored[:, 4:8], stored[:, 8:12]
    scales = np.concatenate([first & 63, rest & 15 | first >> 6 << 4], axis=1)
    mins = np.concatenate([second & 63, rest >> 4 | second >> 6 << 4], axis=1)
    return scales, mins


def above_least(kind: GgmlType, blocks: Bytes) -> tuple[Bytes, Float, Float]:
    """Blocks of a type of `LEAST` as steps above a least value, in parts of 32: numbers uint8 [n, parts, 32], steps and
    least values [n, parts]."""
    if kind.block == BLOCK:
        five = kind.name == "Q5_1"
        q = _nibbles(blocks[:, 8:]) | _fifth(blocks, 4) if five else _nibbles(blocks[:, 4:])
        return q[:, None], _half(blocks, 0), _half(blocks, 2)
    if kind.name == "Q4_K":
        q = _k_nibbles(blocks[:, 16:144])
    else:
        high = blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8).reshape(1, 8, 1) & np.uint8(1)
        q = _k_nibbles(blocks[:, 48:176]) | high << np.uint8(4)
    scales, mins = _scales_and_mins(blocks[:, 4:16])
    return q, _half(blocks, 0) * scales, -(_half(blocks, 2) * mins)


def _above_least(kind: GgmlType, blocks: Bytes) -> Float:
    q, steps, least = above_least(kind, blocks)
    return (steps[:, :, None] * q.astype(np.float32) + least[:, :, None]).reshape(len(blocks), -1)


def _k_nibbles(stored: Bytes) -> Bytes:
    """Nibbles [n, 8, 32] of 128 bytes: the low ones of 32 bytes, then their high ones."""
    pairs = stored.reshape(-1, 4, 1, 32) >> np.array([0, 4], np.uint8).reshape(1, 1, 2, 1)
    return (pairs & np.uint8(15)).reshape(-1, 8, 32)


def _q6_k(blocks: Bytes) -> Float:
    steps = _half(blocks, 208) * _view(blocks, 192, 208, np.int8).astype(np.float32)
    return (steps[:, :, None] * (_q6_codes(blocks).astype(np.float32) - np.float32(32))).reshape(-1, SUPER)


def _q6_codes(blocks: Bytes) -> Bytes:
    """The values plus 32: [n, 16, 16]."""
    low = blocks[:, :128].reshape(-1, 2, 1, 64) >> np.array([0, 4], np.uint8).reshape(1, 1, 2, 1) & np.uint8(15)
    found: Bytes = low.reshape(-1, 2, 4, 32) | _planes(blocks[:, 128:192], 2) << np.uint8(4)
    return found.reshape(-1, 16, 16)


def _iq4_nl(blocks: Bytes) -> Float:
    return _half(blocks, 0) * _NONLINEAR[_nibbles(blocks[:, 2:])]


def _mxfp4(blocks: Bytes) -> Float:
    """A power of two for each block, of twice the values."""
    return np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 128) * (2 * VALUES)[_nibbles(blocks[:, 1:])]


def _iq4_xs(blocks: Bytes) -> Float:
    codes, steps = coded("IQ4_XS", blocks)
    return (steps[:, :, None] * _NONLINEAR[codes]).reshape(-1, SUPER)


def _xs_steps(blocks: Bytes) -> Float:
    """The scales of the eight blocks of 32: [n, 8]."""
    low = (blocks[:, 4:8, None] >> np.array([0, 4], np.uint8) & np.uint8(15)).reshape(-1, 8)
    high = _view(blocks, 2, 4, "<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & np.uint16(3)
    return _half(blocks, 0) * ((low | high << 4).astype(np.float32) - np.float32(32))


FUNCTIONS: dict[str, Callable[[Bytes], Float]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q4_0": _q4_0,
    "Q5_0": _q5_0,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
    **{name: partial(_above_least, BY_NAME[name]) for name in LEAST},
}
