"""Rows of a bundle's tensor as its checkpoint stores them, stacked of several matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from edgedec.bundle.integers import Integers
from edgedec.errors import BadTensor
from edgedec.export.quantize import Bytes, Half, quantize
from edgedec.export.quantized._matrix import Codes, IntegerMatrix, OwnMatrix
from edgedec.export.safetensors import Array
from edgedec.models import Part

T = TypeVar("T", bound=np.generic)
USUAL = {"int4": 8, "int8": 128}


@dataclass(frozen=True)
class StackedPart:
    """`rows` rows from `first` on of a matrix, times a factor; or of floats, where there is no matrix of integers.
    read: its rows start to stop-1, counted from 0, as floats."""

    matrix: IntegerMatrix | None
    first: int
    rows: int
    times: float
    read: Callable[[int, int], Array]


def block_of(parts: Sequence[StackedPart], fmt: Literal["int4", "int8"]) -> int:
    """The block that holds the integers of all parts in `fmt`; 0 if none does, or if no part has integers."""
    matrices = [part.matrix for part in parts if part.matrix is not None]
    if not matrices or not all(matrix.holds and matrix.bits <= (4 if fmt == "int4" else 8) for matrix in matrices):
        return 0
    return min(matrix.block for matrix in matrices)


def stored_rows(
    parts: Sequence[StackedPart], fmt: Literal["int4", "int8"], block: int, start: int, stop: int
) -> tuple[Bytes, Half, Codes]:
    """Rows start to stop-1 of the stack: data [n, blocks, bytes of a block], scales and zero points [n, blocks]."""
    found, at = [], 0
    for part in parts:
        a, b = max(start, at), min(stop, at + part.rows)
        if a < b:
            found.append(_rows(part, fmt, block, a - at, b - at))
        at += part.rows
    data, scales, zeros = (np.concatenate(pieces) for pieces in zip(*found, strict=True))
    return data, scales, zeros


@dataclass(frozen=True)
class OwnPart:
    """`rows` rows of a matrix with a format of its own; or of others, where there is none. read: its rows start to
    stop-1, counted from 0, as floats."""

    matrix: OwnMatrix | None
    part: Part
    rows: int
    read: Callable[[int, int], Array]


def own_format(parts: Sequence[OwnPart]) -> tuple[Integers, int] | None:
    """The format and the block that hold all parts: int8 those of int4 too, and both anything, rounded; None if there
    are none."""
    matrices = [part.matrix for part in parts if part.matrix is not None]
    formats, blocks = {matrix.own for matrix in matrices}, {matrix.block for matrix in matrices}
    if formats == USUAL.keys():
        formats = {"int8"}
    if len(formats) != 1 or len(blocks) != 1:
        return None
    fmt = formats.pop()
    return (fmt, blocks.pop()) if len(matrices) == len(parts) or fmt in USUAL else None


def own_rows(
    parts: Sequence[OwnPart], fmt: Integers, block: int, start: int, stop: int
) -> tuple[Bytes, Half, Half | None]:
    """Rows start to stop-1 of the stack in that format: data, scales, and offsets if a matrix has some."""
    found, at = list[tuple[Bytes, Half, Half]](), 0
    for one in parts:
        a, b = max(start, at), min(stop, at + one.rows)
        if a < b:
            found.append(_own_rows(one, fmt, block, a - at, b - at))
        at += one.rows
    data, scales, offsets = (np.concatenate(pieces) for pieces in zip(*found, strict=True))
    return data, scales, offsets if any(one.matrix.offsets for one in parts if one.matrix is not None) else None


def _own_rows(one: OwnPart, fmt: Integers, block: int, start: int, stop: int) -> tuple[Bytes, Half, Half]:
    if one.matrix is None:
        data, scales = quantize(one.read(start, stop), fmt, block)
        return data, scales, np.zeros_like(scales)
    data, scales, offsets = one.matrix.stored(one.part, fmt, start, stop)
    if not (np.isfinite(scales).all() and np.isfinite(offsets).all()):
        raise BadTensor(f"{one.part.name}: holds values that are not finite")
    return data, scales, offsets


def _rows(
    part: StackedPart, fmt: Literal["int4", "int8"], block: int, start: int, stop: int
) -> tuple[Bytes, Half, Codes]:
    matrix = part.matrix
    if matrix is None:
        data, scales = quantize(part.read(start, stop), fmt, block)
        return data, scales, np.full(scales.shape, USUAL[fmt], np.uint8)
    a, b = start + part.first, stop + part.first
    codes, zeros = matrix.codes(a, b), _by_block(matrix, block, matrix.zeros(a, b))
    scales = _by_block(matrix, block, matrix.scales(a, b) * np.float32(part.times)).astype(np.float16)
    more = np.uint8(USUAL[fmt] - (1 << matrix.bits - 1))  # fewer bits lie in the middle of the format's
    return _data(codes + more, zeros + more, fmt, block), scales, zeros + more


def _by_block(matrix: IntegerMatrix, block: int, by_group: npt.NDArray[T]) -> npt.NDArray[T]:
    """[n, groups] -> [n, blocks]: a group's value in each of its blocks."""
    return by_group[:, np.arange(-(-matrix.shape[1] // block)) * block // matrix.group]


def _data(codes: Codes, zeros: Codes, fmt: Literal["int4", "int8"], block: int) -> Bytes:
    """codes [n, in] as a bundle stores them [n, blocks, bytes of a block]; its zero fills up the last block."""
    n, k = codes.shape
    filled = np.repeat(zeros[:, -1:], zeros.shape[1] * block - k, axis=1)
    blocks = np.concatenate([codes, filled], axis=1).reshape(n, -1, block)
    return blocks[..., 0::2] | blocks[..., 1::2] << 4 if fmt == "int4" else blocks
