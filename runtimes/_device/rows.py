"""Keys and values as they lie in pages (`kernels/cpu/kv.h`), to floats and back, with the bytes of the engines."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgedec.kernels.device.structs import FORMATS

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
_GROUP, _PAIR = 16, 32
_LEAST, _LARGEST = np.finfo(np.float32).tiny, np.finfo(np.float32).max
_LIMIT = np.float32(1e38)


def load_rows(rows: Bytes, dim: int, fmt: int) -> Floats:
    """rows [.., row bytes] -> [.., dim]."""
    if fmt == FORMATS["f32"]:
        return np.ascontiguousarray(rows[..., : 4 * dim]).view(np.float32)
    if fmt == FORMATS["f16"]:
        return np.ascontiguousarray(rows[..., : 2 * dim]).view(np.float16).astype(np.float32)
    if fmt == FORMATS["int8"]:
        scale = np.ascontiguousarray(rows[..., -4:]).view(np.float32)
        return rows[..., :dim].view(np.int8).astype(np.float32) * scale
    steps, least = _pairs(rows, dim)
    # A nibble times a scale of 8 bits is exact in float64, so this rounds once, as a fused multiply-add does.
    found: Floats = (_nibbles(rows, dim).astype(np.float64) * steps + least).astype(np.float32)
    return found


def store_rows(x: Floats, fmt: int, width: int) -> Bytes:
    """x [.., dim] -> rows [.., width]."""
    out = np.zeros((*x.shape[:-1], width), np.uint8)
    if fmt in (FORMATS["f32"], FORMATS["f16"]):
        kept = x if fmt == FORMATS["f32"] else x.astype(np.float16)
        part = np.ascontiguousarray(kept).view(np.uint8)
        out[..., : part.shape[-1]] = part
    elif fmt == FORMATS["int8"]:
        _store_int8(x, out)
    else:
        _store_int4(x, out)
    return out


def _store_int8(x: Floats, out: Bytes) -> None:
    top = np.fmax.reduce(np.abs(x), axis=-1, keepdims=True, initial=np.float32(0))
    wide = np.minimum(top, _LARGEST) / np.float32(127)
    scale: Floats = np.where(wide < _LEAST, np.float32(0), wide).astype(np.float32)
    q = _rounded(x * _inverse(scale), -127, 127).astype(np.int8)
    out[..., : x.shape[-1]] = q.view(np.uint8)
    out[..., -4:] = scale.view(np.uint8)


def _store_int4(x: Floats, out: Bytes) -> None:
    dim, groups = x.shape[-1], -(-x.shape[-1] // _GROUP)
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, groups * _GROUP - dim)], mode="edge")
    parts = padded.reshape(*x.shape[:-1], groups, _GROUP)
    least_bits, scale_bits = _ranges(parts)
    least, scale = least_bits.view(np.float32)[..., None], scale_bits.view(np.float32)[..., None]
    q = np.zeros((*x.shape[:-1], dim + 1), np.uint8)
    units = _rounded((parts - least) * _inverse(scale), 0, 15)
    q[..., :dim] = units.reshape(*x.shape[:-1], groups * _GROUP)[..., :dim]
    first, second = _places(dim)
    out[..., : len(first)] = q[..., first] | q[..., second] << 4
    pairs = least_bits | scale_bits >> np.uint32(16)
    out[..., out.shape[-1] - 4 * groups :] = pairs.view(np.uint8)


def _ranges(parts: Floats) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Bits of the least value and of the scale of each group, rounded so that codes 0 to 15 cover the group. NaN is
    ignored; of two zeros the first counts."""
    known = ~np.isnan(parts)
    at = np.where(known, parts, np.inf).argmin(axis=-1)[..., None]
    least = np.clip(np.take_along_axis(parts, at, axis=-1)[..., 0], -_LIMIT, _LIMIT)
    most = np.clip(np.where(known, parts, -np.inf).max(axis=-1), -_LIMIT, _LIMIT).astype(np.float32)
    least, most = (np.where(known.any(axis=-1), x, np.float32(0)).astype(np.float32) for x in (least, most))
    least_bits = _outward(least, least < 0)
    scale_bits = _outward((most - least_bits.view(np.float32)) / np.float32(15), np.ones(least.shape, bool))
    return least_bits, np.where(scale_bits.view(np.float32) < _LEAST, np.uint32(0), scale_bits)


def _rounded(x: Floats, low: int, high: int) -> Floats:
    """To nearest, ties to even, within low and high; NaN becomes `low`."""
    above = np.where(x > low, x, np.float32(low))
    found: Floats = np.rint(np.where(above < high, above, np.float32(high)))
    return found


def _inverse(scale: Floats) -> Floats:
    """1 / scale; 0 where there is none."""
    safe = np.where(scale >= _LEAST, scale, np.float32(1))
    found: Floats = np.where(scale >= _LEAST, np.float32(1) / safe, np.float32(0)).astype(np.float32)
    return found


def _outward(x: Floats, away: NDArray[np.bool_]) -> NDArray[np.uint32]:
    """The bits of the bfloat16 next to x, on the side away from zero where `away`."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return (bits + np.where(away, np.uint32(0xFFFF), np.uint32(0))) & np.uint32(0xFFFF0000)


def _places(dim: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The values in the low and in the high half of each byte: of 32 values 0 and 16, 1 and 17, ..., of a rest 0 and 1,
    2 and 3, ...; `dim`: none."""
    whole = dim // _PAIR * _PAIR
    paired = [g + i for g in range(0, whole, _PAIR) for i in range(_GROUP)]
    rest = range(whole, dim, 2)
    return np.array([*paired, *rest]), np.array([*(i + _GROUP for i in paired), *(i + 1 for i in rest)])


def _nibbles(rows: Bytes, dim: int) -> Bytes:
    first, second = _places(dim)
    found, bytes_ = np.zeros((*rows.shape[:-1], dim + 1), np.uint8), rows[..., : len(first)]
    found[..., first], found[..., second] = bytes_ & 15, bytes_ >> 4
    return found[..., :dim]


def _pairs(rows: Bytes, dim: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Scale and least value of each element."""
    groups = -(-dim // _GROUP)
    pairs = np.ascontiguousarray(rows[..., rows.shape[-1] - 4 * groups :]).view(np.uint32)
    each = np.repeat(pairs, _GROUP, axis=-1)[..., :dim]
    scale, least = (part.view(np.float32) for part in (each << np.uint32(16), each & np.uint32(0xFFFF0000)))
    return scale.astype(np.float64), least.astype(np.float64)
