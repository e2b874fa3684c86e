"""Matrices of 8-bit floats (E4M3) with scales by tensor, by output, or by block of outputs and inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal

import numpy as np

from edgedec.errors import BadTensor
from edgedec.export.quantized._matrix import QuantizedMatrix
from edgedec.export.quantized._reading import floats, integers
from edgedec.export.safetensors import Array, Stored


def float8_values() -> Array:
    """The value of each byte [256]: a sign, 4 bits of exponent (bias 7), 3 of mantissa; no infinities, 0x7f is NaN."""
    byte = np.arange(256)
    exponent, mantissa = byte >> 3 & 15, byte & 7
    size = np.where(exponent, np.ldexp(8.0 + mantissa, exponent - 10), np.ldexp(1.0 * mantissa, -9))
    size[(byte & 127) == 127] = np.nan
    return np.where(byte & 128, -size, size).astype(np.float32)


_VALUES = float8_values()


def float8(name: str, weight: Stored, scale_name: str, scale: Stored, block: tuple[int, int] | None) -> Float8Matrix:
    """The matrix `name` with its scales, after a check of their shapes. block: (outputs, inputs) of a scale, if the
    config has it."""
    if len(weight.shape) != 2:
        raise BadTensor(f"{name}: {weight.dtype} {list(weight.shape)} is not a matrix")
    n, k = weight.shape
    rows, width = _block(n, k, scale_name, scale, block)
    return Float8Matrix(name, (n, k), "FP8", weight, scale_name, scale, rows, width)


def _block(n: int, k: int, name: str, scale: Stored, block: tuple[int, int] | None) -> tuple[int, int]:
    """How many outputs and inputs share a scale."""
    shape = scale.shape
    if prod(shape) == 1:
        return n, k
    if shape in ((n,), (n, 1)):
        return 1, k
    if block and shape == (-(-n // block[0]), -(-k // block[1])):
        return block
    wanted = f", or one for each block of {block[0]} by {block[1]}" if block else ""
    raise BadTensor(f"{name}: {list(shape)} scales for a weight of {[n, k]}; expected one, one for each output{wanted}")


@dataclass(frozen=True, eq=False)
class Float8Matrix(QuantizedMatrix):
    """A scale for each block of `rows` outputs and `width` inputs."""

    weight: Stored
    scale_name: str
    scale: Stored
    rows: int
    width: int

    @property
    def suggested(self) -> Literal["int4", "int8"]:
        return "int8"

    def floats(self, start: int, stop: int) -> Array:
        values = _VALUES[integers(self.name, self.weight, start, stop)]
        n, k = self.shape
        scales = floats(self.scale_name, _flat(self.scale)).reshape(-(-n // self.rows), -(-k // self.width))
        mine = scales[np.arange(start, stop) // self.rows]
        values *= np.repeat(mine, self.width, axis=1)[:, :k]
        return values


def _flat(stored: Stored) -> Stored:
    """The same numbers as a vector; a scalar has one."""
    return Stored(stored.file, stored.dtype, (prod(stored.shape),), stored.offset, stored.size)


def modules(tensors: Mapping[str, Stored], suffixes: tuple[str, ...]) -> dict[str, str]:
    """The names of FP8 weights, each with that of its scales: the weight's and one of `suffixes`."""
    found = {}
    for name, stored in tensors.items():
        if stored.dtype == "F8_E4M3" and name.endswith(".weight"):
            scale = next((name + suffix for suffix in suffixes if name + suffix in tensors), None)
            if scale is None:
                raise BadTensor(f"{name}: FP8 without {name}{suffixes[0]}")
            found[name] = scale
    return found
