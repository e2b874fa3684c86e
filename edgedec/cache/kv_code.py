"""Lossless coding of cached keys and values: the compressed difference of each slot to its prediction.

    slot 9, token "the"  ->  predicted by slot 4, the last "the" before it  ->  difference, byte by byte, deflated

After Sequential KV Cache Compression via Probabilistic Language Tries: a key or value follows from what was cached
before and from the token. Numbers become integers that are ordered as they are; the difference is taken modulo their
size, so nothing is rounded; its bytes are sorted by their place, as the first ones are small and the last ones noise. A
run is coded without prediction where that is shorter.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[Any]
_HEAD, _PLANE = struct.Struct("<B"), struct.Struct("<I")
_RAW = 1 << 31
_PLAIN, _SAME = 0, 1
_SAMPLE = 4096


class Field(NamedTuple):
    """Some bytes of every row: numbers of `size` bytes each; real: are they floats, of which the sign comes first?"""

    start: int
    stop: int
    size: int
    real: bool


class CodeError(ValueError):
    """Bytes that are no code of such rows."""


def sources(tokens: Sequence[int]) -> NDArray[np.int64]:
    """The slot that predicts each slot: the last earlier one of the same token, else the one before it; -1: none.

    5 7 5 5 -> -1 0 0 2
    """
    last, found = dict[int, int](), np.empty(len(tokens), np.int64)
    for i, token in enumerate(tokens):
        found[i] = last.get(token, i - 1)
        last[token] = i
    return found


def encode(rows: Bits, field: Field, start: int, source: NDArray[np.int64]) -> bytes:
    """The rows from `start` on of uint8 [heads, n, row bytes], whose predictions may lie before it."""
    values = ordered(_numbers(rows, field), field)
    plain = _planes(values[:, start:], field)
    same = np.where((source >= 0)[:, None], values[:, source], values.dtype.type(0))
    delta = _planes(_folded(values[:, start:] - same[:, start:]), field)
    code, chosen = min((delta, _SAME), (plain, _PLAIN), key=lambda item: len(item[0]))
    return _HEAD.pack(chosen) + code


def decode(code: memoryview, rows: Bits, field: Field, start: int, source: NDArray[np.int64]) -> memoryview:
    """Write the rows from `start` on, those before being there: the code after them. CodeError for any other."""
    if len(code) < _HEAD.size or code[0] not in (_PLAIN, _SAME):
        raise CodeError("no such prediction")
    chosen, code = code[0], code[_HEAD.size :]
    heads, n, width = rows.shape[0], rows.shape[1] - start, (field.stop - field.start) // field.size
    values, code = _unplanes(code, (heads, n, width), field)
    if chosen == _SAME:
        known = np.empty((heads, rows.shape[1], width), values.dtype)
        known[:, :start] = ordered(_numbers(rows[:, :start], field), field)
        delta = _unfolded(values)
        for i in range(start, rows.shape[1]):
            at = source[i]
            known[:, i] = delta[:, i - start] + (known[:, at] if at >= 0 else values.dtype.type(0))
        values = known[:, start:]
    bits = np.ascontiguousarray(ordered(values, field, back=True))
    rows[:, start:, field.start : field.stop] = bits.view(np.uint8).reshape(heads, n, width * field.size)
    return code


def _numbers(rows: Bits, field: Field) -> Bits:
    part = np.ascontiguousarray(rows[..., field.start : field.stop])
    return part.view(f"<u{field.size}")


def ordered(bits: Bits, field: Field, back: bool = False) -> Bits:
    """Bits of floats as integers in the order of the floats, or back; integers as they are.

    -1.0 0.0 1.0 (float32) -> 0x407fffff 0x80000000 0xbf800000
    """
    if not field.real:
        return bits
    top = bits.dtype.type(1 << (8 * field.size - 1))
    negative = (bits & top == 0) if back else (bits & top != 0)
    return np.where(negative, ~bits, bits ^ top)


def _folded(delta: Bits) -> Bits:
    """Differences of either sign as small numbers: 0 -1 1 -2 -> 0 1 2 3."""
    bits, signed = 8 * delta.itemsize, delta.view(f"<i{delta.itemsize}")
    return (delta << delta.dtype.type(1)) ^ (signed >> signed.dtype.type(bits - 1)).view(delta.dtype)


def _unfolded(folded: Bits) -> Bits:
    one = folded.dtype.type(1)
    return (folded >> one) ^ (~(folded & one) + one)


def _planes(values: Bits, field: Field) -> bytes:
    """values [heads, n, width] -> for each byte of a number its length and the bytes, channel by channel."""
    flat = np.ascontiguousarray(values.transpose(0, 2, 1)).view(np.uint8).reshape(-1, field.size)
    found = []
    for i in range(field.size):
        plane = flat[:, i].tobytes()
        packed = _deflated(plane, field)
        raw = len(packed) >= len(plane)
        found.append(_PLANE.pack(len(plane) | _RAW if raw else len(packed)) + (plane if raw else packed))
    return b"".join(found)


def _deflated(plane: bytes, field: Field) -> bytes:
    # The bytes of floats do not repeat, so only their frequencies can be used; a sample shows whether that helps.
    strategy = zlib.Z_HUFFMAN_ONLY if field.size > 1 else zlib.Z_DEFAULT_STRATEGY
    pack: Callable[[bytes], bytes] = lambda some: _deflate(some, strategy)  # noqa: E731
    if len(plane) > 4 * _SAMPLE and len(pack(plane[:_SAMPLE])) >= _SAMPLE:
        return plane
    return pack(plane)


def _deflate(plane: bytes, strategy: int) -> bytes:
    packer = zlib.compressobj(6, zlib.DEFLATED, -15, 9, strategy)
    return packer.compress(plane) + packer.flush()


def _unplanes(code: memoryview, shape: tuple[int, int, int], field: Field) -> tuple[Bits, memoryview]:
    heads, n, width = shape
    flat = np.empty((heads * n * width, field.size), np.uint8)
    for i in range(field.size):
        if len(code) < _PLANE.size:
            raise CodeError("cut short")
        length = _PLANE.unpack(code[: _PLANE.size])[0]
        raw, length = bool(length & _RAW), length & ~_RAW
        part, code = code[_PLANE.size : _PLANE.size + length], code[_PLANE.size + length :]
        flat[:, i] = np.frombuffer(
            bytes(part) if raw else _inflated(part, len(flat)), np.uint8, _exact(part, raw, flat)
        )
    values = flat.reshape(-1).view(f"<u{field.size}").reshape(heads, width, n)
    return np.ascontiguousarray(values.transpose(0, 2, 1)), code


def _exact(part: memoryview, raw: bool, flat: Bits) -> int:
    """The bytes of a plane; CodeError if a raw one has another number."""
    if raw and len(part) != len(flat):
        raise CodeError("a plane of another size")
    return len(flat)


def _inflated(part: memoryview, size: int) -> bytes:
    """Exactly `size` bytes; never more are made."""
    unpacker = zlib.decompressobj(-15)
    try:
        plane = unpacker.decompress(part, size + 1)
    except zlib.error as error:
        raise CodeError(str(error)) from None
    if len(plane) != size or not unpacker.eof or unpacker.unused_data:
        raise CodeError("a plane of another size")
    return plane
