"""NVFP4 (NVIDIA): 4-bit floats, two a byte, the lower bits first; an E4M3 scale for each 16 inputs of an output, and a
float32 for all of these. The floats are those of MXFP4 (E2M1).

In a bundle they are integers, twice the floats, in int8 with blocks of 16: every value stays, at 9 bits a weight, but
for what float16 rounds off half a scale. Int8 in blocks of 32 would round weights of two scales to one grid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Literal

import numpy as np

from edgedec.bundle.integers import MX4_VALUES, Integers, unpacked
from edgedec.errors import BadTensor
from edgedec.export.quantized._float8 import float8_values
from edgedec.export.quantized._matrix import Codes, Half, OwnMatrix
from edgedec.export.quantized._reading import floats, integers, require_shape, tensor
from edgedec.export.quantized.mxfp4 import VALUES
from edgedec.export.safetensors import Array, Stored
from edgedec.models import Part

SHARED = 16  # values that share a scale
_LARGEST = 126  # the byte of the largest scale, 448
_ROWS = 4096  # whose scales are looked at together


def nvfp4(name: str, scale_name: str, whole_name: str, tensors: Mapping[str, Stored], divides: bool) -> Nvfp4Matrix:
    """The matrix of the bytes `name` [out, in / 2] and the scales [out, in / 16], which the number at `whole_name`
    multiplies or `divides`."""
    data = tensor(tensors, name, "U8", 2)
    n, k = data.shape[0], 2 * data.shape[1]
    if k % SHARED:
        raise BadTensor(f"{name}: has shape {list(data.shape)}; rows of NVFP4 are whole {SHARED // 2} bytes")
    scale = tensor(tensors, scale_name, "F8_E4M3", 2)
    require_shape(scale_name, scale, (n, k // SHARED))
    whole = _whole(whole_name, tensors)
    with np.errstate(over="ignore"):
        scales = float8_values() / whole if divides else float8_values() * whole
    return Nvfp4Matrix(data.file.name, (n, k), "NVFP4", name, data, scale_name, scale, scales)


def _whole(name: str, tensors: Mapping[str, Stored]) -> np.float32:
    stored = tensors.get(name)
    if stored is None:
        raise BadTensor(f"{name}: missing from the checkpoint")
    if prod(stored.shape) != 1:
        raise BadTensor(f"{name}: has shape {list(stored.shape)}, expected one number")
    found = floats(name, Stored(stored.file, stored.dtype, (1,), stored.offset, stored.size))[0]
    if not (np.isfinite(found) and found):
        raise BadTensor(f"{name}: {found} is no scale")
    return np.float32(found)


@dataclass(frozen=True, eq=False)
class Nvfp4Matrix(OwnMatrix):
    """scales: the value of each byte [256] of `scale`."""

    data_name: str
    data: Stored
    scale_name: str
    scale: Stored
    scales: Array

    @property
    def suggested(self) -> Literal["int4", "int8"]:
        return "int8"

    @property
    def own(self) -> Integers:
        return "int8"

    @property
    def block(self) -> int:
        return SHARED

    def holds(self, part: Part) -> bool:
        return part.plain and bool(abs(self.scales[_LARGEST]) / 2 <= np.finfo(np.float16).max)

    @cached_property
    def exact(self) -> bool:
        """Whether float16 holds half of every scale."""
        there = np.zeros(256, bool)
        for start in range(0, self.shape[0], _ROWS):
            there[integers(self.scale_name, self.scale, start, min(start + _ROWS, self.shape[0]))] = True
        halves = self.scales[there] / 2
        return np.array_equal(halves.astype(np.float16).astype(np.float32), halves)

    def stored(self, part: Part, fmt: Integers, start: int, stop: int) -> tuple[Codes, Half, Half]:
        first = part.rows[0] if part.rows else 0
        codes, scales = self._read(first + start, first + stop)
        halves = (scales / 2 * np.float32(part.times)).astype(np.float16)
        return (MX4_VALUES[codes].astype(np.int16) + 128).astype(np.uint8), halves, np.zeros_like(halves)

    def floats(self, start: int, stop: int) -> Array:
        codes, scales = self._read(start, stop)
        found: Array = (VALUES[codes] * scales[..., None]).reshape(stop - start, -1)
        return found

    def _read(self, start: int, stop: int) -> tuple[Codes, Array]:
        """Rows start to stop-1: codes [n, blocks, 16] and scales [n, blocks]."""
        codes = unpacked(integers(self.data_name, self.data, start, stop), "int4")
        scales = self.scales[integers(self.scale_name, self.scale, start, stop)]
        return codes.reshape(*scales.shape, SHARED), scales
