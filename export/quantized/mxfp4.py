"""MXFP4 as gpt-oss stores its experts: `*_blocks` [experts, out, in / 32, 16], two 4-bit floats a byte, the lower bits
first, and `*_scales` [experts, out, in / 32], powers of two (OCP Microscaling Formats 1.0: E2M1 with an E8M0 scale).

The float tensor that transformers makes of them is [experts, in, out], under the name without the suffix: so are they
given here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from edgedec.errors import BadTensor
from edgedec.export.quantized import Found, QuantizedMatrix
from edgedec.export.quantized._reading import integers, require_shape, tensor
from edgedec.export.safetensors import Array, Stored

_BLOCKS, _SCALES = "_blocks", "_scales"
_SHARED = 32  # values that share a scale
# E2M1: a sign, two bits of exponent (bias 1), one of mantissa.
VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
_NAN = 255  # an E8M0 scale that is none


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
class Mxfp4Experts(QuantizedMatrix):
    """Matrices of experts, turned: rows e * in on are the inputs of expert e."""

    blocks_name: str
    blocks: Stored
    scales_name: str
    scales: Stored

    @property
    def suggested(self) -> Literal["int4", "int8"]:
        return "int4"

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
        scales = integers(self.scales_name, self.scales, expert, expert + 1)[0].astype(np.int32)
        if (scales == _NAN).any():
            raise BadTensor(f"{self.scales_name}: holds values that are not numbers")
        data = integers(self.blocks_name, self.blocks, expert, expert + 1)[0]
        both = np.stack([VALUES[data & 15], VALUES[data >> 4]], axis=-1).reshape(*scales.shape, _SHARED)
        found: Array = np.ldexp(both, (scales - 127)[..., None]).astype(np.float32).reshape(len(scales), -1)
        return found
