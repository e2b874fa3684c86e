"""Symmetric block quantization of weight matrices, along the input dimension.

A block of consecutive weights of a row shares one float16 scale; a weight is stored as an unsigned byte
or nibble: q + 8 for int4 (q in -8..7, low nibble first), q + 128 for int8 (q in -127..127), or in bit planes
(`edgedec.bundle.integers`). There is no zero point, so an int4 scale may be negative: that puts the grid's extra
step, -8, on the side of the block's largest weight.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edgedec.bundle.integers import (
    Integers,
    code_bytes,
    packed,
    stands_for_zero,
    step_of,
    together,
    unpacked,
    values,
)
from edgedec.errors import BadTensor, UsageError
from edgedec.export.grids import GREATEST_HALF, GRIDS, LEAST_SCALE

Float = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Half = npt.NDArray[np.float16]
Format = Integers

# Weights worked on at a time: with its temporaries a chunk stays inside a core's own cache.
CHUNK = 1 << 16
# Where the int4 grid puts the largest weight of a block before the scale is refitted to all of it; the best
# of them is kept. Root mean square error against the plain scale max/7, blocks of 32 (and of 128) normal
# weights: max/-8 0.886 (0.879); best of 7 and -8 0.877 (0.879), refitted 0.856 (0.867); all five, refitted
# 0.840 (0.828); a fine search of 58 places 0.834 (0.823). With 7 and -8 among them, weights that already lie
# on an int4 grid come back exactly.
PLACES = (7.0, -7.2, -8.0, -8.8, -9.6)


def quantize(rows: Float, fmt: Format, block: int) -> tuple[Bytes, Half]:
    """rows float32 [n, k] -> data uint8 [n, nb, bytes of a block], scales float16 [n, nb],
    with nb = ceil(k / block); the last block of a row is filled up.

    >>> data, scales = quantize(np.array([[-8, 3, 0, 7]], np.float32), "int4", 4)
    >>> data.tolist(), scales.tolist()
    ([[[176, 248]]], [[1.0]])
    """
    _require(fmt, block)
    n, k = rows.shape
    nb = -(-k // block)
    data = np.empty((n * nb, code_bytes(fmt, block)), np.uint8)
    scales = np.empty(n * nb, np.float16)
    blocks, step = _blocks(rows, nb, block, step_of(fmt) == 1), max(1, CHUNK // block)
    for at in range(0, n * nb, step):
        data[at : at + step], scales[at : at + step] = _quantize_chunk(blocks[at : at + step], fmt)
    return data.reshape(n, nb, -1), scales.reshape(n, nb)


def _require(fmt: str, block: int) -> None:
    if fmt not in GRIDS:
        raise UsageError(f"weight format {fmt!r} is not one of {', '.join(GRIDS)}")
    whole = max(together(fmt), 2)
    if block < whole or block % whole:
        raise UsageError(f"quantization block {block}: {fmt} needs a multiple of {whole} weights")


def _blocks(rows: Float, nb: int, block: int, zero: bool) -> Float:
    """rows [n, k] as blocks [n * nb, block], zeros after the end of a row; for a format without a zero other weights of
    the row, which draw no scale away from them. No input is multiplied by either."""
    n, k = rows.shape
    if k != nb * block:
        rows = np.pad(rows, ((0, 0), (0, nb * block - k)), mode="constant" if zero else "wrap")
    return rows.reshape(n * nb, block)


def _quantize_chunk(blocks: Float, fmt: Format) -> tuple[Bytes, Half]:
    """blocks [m, block] -> data [m, bytes], scales [m].

    The work is done on the transpose: sums over a block then run along long rows, which is what numpy is
    fast at.
    """
    x = np.ascontiguousarray(blocks.T)
    top, bottom = x.max(axis=0), x.min(axis=0)
    scales = _scales(x, np.where(top >= -bottom, top, bottom), fmt)
    stored = _round(x, scales.astype(np.float32), fmt)
    stored += np.float32(stands_for_zero(fmt))
    if fmt == "int4":  # as `packed`, on the transpose
        data: Bytes = stored.astype(np.uint8)
        return np.bitwise_or(data[0::2], data[1::2] << 4, dtype=np.uint8).T, scales
    if step_of(fmt) > 1:
        stored *= np.float32(1 / step_of(fmt))
    return packed(np.ascontiguousarray(stored.astype(np.uint8).T), fmt), scales


def _scales(x: Float, largest: Float, fmt: Format) -> Half:
    """x [block, m], the weight of largest magnitude in each block [m] -> scales [m]."""
    reach = GRIDS[fmt].high * GREATEST_HALF
    if not (np.abs(largest) <= reach).all():  # not: a NaN must not pass
        raise BadTensor(f"a weight is not finite, or beyond the {reach:.0f} that {fmt} with float16 scales holds")
    fitted = np.abs(largest / np.float32(127)) if fmt == "int8" else _fit(x, largest, fmt)
    return np.clip(fitted, -GREATEST_HALF, GREATEST_HALF).astype(np.float16)


def _fit(x: Float, largest: Float, fmt: Format) -> Float:
    """The scale of each block that leaves the smallest squared error among those tried: [m].

    For weights x rounded to steps q, the best scale is s = <x,q> / <q,q>, and it leaves the error
    <x,x> - s <x,q>: so s <x,q> ranks the places, and s of the best one is the answer.
    """
    best_gain, best_scale = np.zeros_like(largest), np.zeros_like(largest)
    product = np.empty_like(x)
    for place in PLACES if fmt == "int4" else GRIDS[fmt].places:
        q = _round(x, largest / np.float32(place), fmt)
        xq = np.multiply(x, q, out=product).sum(axis=0)
        qq = np.multiply(q, q, out=product).sum(axis=0)
        scale = xq / np.maximum(qq, np.float32(1))
        gain = scale * xq
        better = gain > best_gain
        best_gain = np.where(better, gain, best_gain)
        best_scale = np.where(better, scale, best_scale)
    return best_scale


def _round(x: Float, scales: Float, fmt: Format) -> Float:
    """x [block, m] in steps of the scales [m], to nearest and even, kept within the format's range."""
    steps = np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=np.abs(scales) >= LEAST_SCALE)
    q, grid = x * steps, GRIDS[fmt]
    if grid.step == 1:
        np.rint(q, out=q)
    else:  # to odd numbers
        q = 2 * np.floor(q * np.float32(0.5)) + np.float32(1)
    np.maximum(q, np.float32(grid.low), out=q)
    np.minimum(q, np.float32(grid.high), out=q)
    return q


def packed_codes(codes: Bytes, fmt: Format, block: int) -> Bytes:
    """codes uint8 [n, k], one a weight -> data as `quantize` gives it; what fills up the last block stands for zero."""
    n, k = codes.shape
    full = np.full((n, -(-k // block) * block), stands_for_zero(fmt) // step_of(fmt), np.uint8)
    full[:, :k] = codes
    return packed(full.reshape(n, -1, block), fmt)


def from_codes(codes: Bytes, scales: Half, fmt: Format, block: int) -> Float:
    """codes uint8 [n, k], scales float16 [n, blocks] -> the weights float32 [n, k]."""
    per_weight = np.repeat(scales.astype(np.float32), block, axis=1)[:, : codes.shape[1]]
    return values(codes, fmt) * per_weight


def codes_of(data: Bytes, fmt: Format, k: int) -> Bytes:
    """data as `quantize` gives it -> the codes of the row's k weights, uint8 [n, k]."""
    return np.ascontiguousarray(unpacked(data, fmt).reshape(len(data), -1)[:, :k])
