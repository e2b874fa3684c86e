"""MXFP4 as gpt-oss stores its experts: `*_blocks` [experts, out, in / 32, 16], two 4-bit floats a byte, the lower bits
first, and `*_scales` [experts, out, in / 32], powers of two (OCP Microscaling Formats 1.0: E2M1 with an E8M0 scale).

The float tensor that transformers makes of them is [experts, in, out], under the name without the suffix: so are they
given here. In a bundle they keep their codes (`mx4`), and their scales where float16 has them (`in_halves`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from edgedec.bundle.integers import MX4_VALUES, Integers, packed
from edgedec.errors import BadTensor
from edgedec.export.moved import moved
from edgedec.export.quantized import Found, OwnMatrix, QuantizedMatrix
from edgedec.export.quantized._matrix import Half
from edgedec.export.quantized._reading import Codes, integers, require_shape, tensor
from edgedec.export.safetensors import Array, Stored
from edgedec.models import Part

_BLOCKS, _SCALES = "_blocks", "_scales"
_SHARED = 32  # values that share a scale
# E2M1: a sign, two bits of exponent (bias 1), one of mantissa.
VALUES: Array = MX4_VALUES.astype(np.float32) / np.float32(2)
_NAN = 255  # an E8M0 scale that is none
_LEAST, _GREATEST = 104, 143  # whose scales of twice the values, 2^(e - 128), are the least and the greatest of float16
_ROWS = 4096  # whose scales are checked at a time


def matrices(settings: Mapping[str, Any], tensors: Mapping[str, Stored]) -> Found:
    """Every tensor of experts."""
    found: dict[str, QuantizedMatrix] = {}
    used: set[str] = set()
    for name in tensors:
        if name.endswith(_BLOCKS):
            scales = name.removesuffix(_BLOCKS) + _SCALES
            blocks = tensor(tensors, name, "U8", 4)
            experts, out, groups, half = blocks.shape
            if 2 * half != _SHARED:
                raise BadTensor(f"{name}: has shape {list(blocks.shape)}; blocks are of {_SHARED // 2} bytes")
            require_shape(scales, tensor(tensors, scales, "U8", 3), (experts, out, groups))
            made = name.removesuffix(_BLOCKS)
            shape = (experts, groups * _SHARED, out)
            found[made] = Mxfp4Experts(made, shape, "MXFP4", name, blocks, scales, tensors[scales])
            used |= {name, scales}
    return Found(found, frozenset(used))


@dataclass(frozen=True, eq=False)
class Mxfp4Experts(OwnMatrix):
    """Matrices of experts, turned: rows e * in on are the inputs of expert e."""

    blocks_name: str
    blocks: Stored
    scales_name: str
    scales: Stored

    @property
    def suggested(self) -> Literal["int4", "int8"]:
        return "int4"

    @property
    def own(self) -> Integers:
        return "mx4"

    def holds(self, part: Part) -> bool:
        """Whether it is one expert, turned as it is meant."""
        first, stop = self._span(part)
        whole = first % self.shape[1] == 0 and stop - first == self.shape[1]
        values = part.add or part.exp or part.ones or part.vector or part.times != 1.0
        return whole and part.flat and part.transposed and not (values or part.in_turn or part.beside > 1)

    def stored(self, part: Part, fmt: Integers, start: int, stop: int) -> tuple[Codes, Half, Half]:
        out = self.shape[2]
        in_order = moved(replace(part, transposed=False), np.arange(out, dtype=np.float32)[:, None])[:, 0]
        rows = in_order[start:stop].astype(np.int64)
        least, first = int(rows.min()), self._span(part)[0] // self.shape[1] * out
        codes, exponents = self._coded(first + least, first + int(rows.max()) + 1)
        codes, scales, _ = in_halves(codes[rows - least], exponents[rows - least], self.blocks_name)
        halves = scales.astype(np.float16)
        return packed(codes, fmt), halves, np.zeros_like(halves)

    @cached_property
    def exact(self) -> bool:
        """Reads all scales, and the codes of rows with one that float16 does not have."""
        rows = self.shape[0] * self.shape[2]
        for start in range(0, rows, _ROWS):
            stop = min(start + _ROWS, rows)
            exponents = self._exponents(start, stop)
            if (exponents < _LEAST).any() and not in_halves(*self._coded(start, stop), self.blocks_name)[2]:
                return False
        return True

    def _span(self, part: Part) -> tuple[int, int]:
        return part.rows or (0, self.shape[0] * self.shape[1])

    def _coded(self, start: int, stop: int) -> tuple[Codes, Codes]:
        """Rows of all experts, each [out, in]: codes [n, blocks, 32] and exponents [n, blocks]."""
        by_row = replace(self.blocks, shape=(self.shape[0] * self.shape[2], *self.blocks.shape[2:]))
        data = integers(self.blocks_name, by_row, start, stop)
        return np.stack([data & 15, data >> 4], axis=-1).reshape(*data.shape[:2], _SHARED), self._exponents(start, stop)

    def _exponents(self, start: int, stop: int) -> Codes:
        by_row = replace(self.scales, shape=(self.shape[0] * self.shape[2], self.scales.shape[2]))
        found: Codes = integers(self.scales_name, by_row, start, stop)
        if (found == _NAN).any():
            raise BadTensor(f"{self.scales_name}: holds values that are not numbers")
        return found

    def floats(self, start: int, stop: int) -> Array:
        _, width, out = self.shape
        found = np.empty((stop - start, out), np.float32)
        for expert in range(start // width, -(-stop // width)):
            first = expert * width
            a, b = max(start, first), min(stop, first + width)
            found[a - start : b - start] = self._expert(expert)[:, a - first : b - first].T
        return found

    def _expert(self, expert: int) -> Array:
        """The matrix [out, in] of an expert."""
        out = self.shape[2]
        codes, exponents = self._coded(expert * out, (expert + 1) * out)
        scaled = np.ldexp(VALUES[codes], exponents.astype(np.int32)[..., None] - 127)
        found: Array = scaled.astype(np.float32).reshape(out, -1)
        return found


def in_halves(codes: Codes, exponents: Codes, name: str) -> tuple[Codes, Array, bool]:
    """Codes [..., 32] and E8M0 exponents [...] -> codes, scales [...] that float16 has, and whether they mean the same.

    A scale is that of twice the values, 2^(e - 128). Float16 has none below 2^-24 and above 2^15: there the values take
    the rest of the power. Below, where that leaves fractions, they are rounded. No other format of a bundle comes
    nearer: all have scales in float16, and 8-bit integers need smaller ones for the same weights.
    """
    within = np.clip(exponents, _LEAST, _GREATEST)
    scales = np.ldexp(np.float32(1), within.astype(np.int32) - 128).astype(np.float32)
    off = within != exponents
    if not off.any():
        return codes, scales, True
    shift = exponents[off].astype(np.int32) - within[off]
    meant = np.ldexp(MX4_VALUES[codes[off]].astype(np.float32), shift[:, None])
    rounded = np.rint(meant)
    if np.abs(rounded).max() > MX4_VALUES.max():
        reach = 12 * 2**15
        raise BadTensor(f"{name}: a weight beyond {reach}, the most that mx4 holds; export with --weights f32")
    place = np.searchsorted(MX4_VALUES[:8], np.abs(rounded)) | np.where(rounded < 0, 8, 0)
    codes = codes.copy()
    codes[off] = place.astype(np.uint8)
    return codes, scales, bool((rounded == meant).all())
