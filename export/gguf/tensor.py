"""A tensor of a GGUF file: plain reads of some of its rows, as floats or as stored, in the order of a checkpoint.

Where two neighbouring channels of a head turn together for llama.cpp, a checkpoint turns its two halves: a file of such
an architecture has the rows of q and k in another order.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.integers import Integers, packed, stands_for_zero
from edgedec.errors import BadTensor
from edgedec.export.gguf.dequantize import Bytes, Float, above_least, coded, dequantize, in_parts
from edgedec.export.gguf.types import BLOCK, BY_NAME, LEAST, OWN, GgmlType
from edgedec.export.safetensors import Stored


@dataclass(frozen=True)
class GgufTensor(Stored):
    """turned: so many of its first rows are heads of `head_dim` whose first `rotated` channels lie in pairs; 0: all."""

    turned: int = 0
    head_dim: int = 0
    rotated: int = 0

    @property
    def kind(self) -> GgmlType:
        return BY_NAME[self.dtype]

    def require_readable(self, name: str) -> None:
        """Nothing to refuse: opening the file checked everything."""

    def values(self, name: str, first: int, shape: tuple[int, ...]) -> Float:
        """Rows from `first` on: float32 of `shape`."""
        if len(self.shape) == 1:  # a vector's rows are its values
            return self._ordered(first, shape[0], self._vector(name)[:, None]).reshape(shape)
        return self._ordered(first, shape[0], None, name).reshape(shape)

    def stored(self, name: str, first: int, n: int, fmt: Integers) -> tuple[Bytes, Float, Float]:
        """Rows of a type of `KEPT`, or of `OWN` without parts, as a bundle stores them in `fmt`: bytes [n, blocks,
        bytes of a block], scales and offsets [n, blocks], these 0 of a type without a least value."""
        blocks = self._rows(name, first, n).reshape(n, -1, self.kind.size)
        if fmt == OWN.get(self.dtype) and self.dtype not in LEAST:
            codes, steps = coded(self.dtype, blocks.reshape(-1, self.kind.size), name)
            data, scales = packed(codes.reshape(n, -1, BLOCK), fmt), steps.reshape(n, -1)
            offsets = np.zeros_like(scales)
        elif self.dtype in LEAST:
            q, steps, least = above_least(self.kind, blocks.reshape(-1, self.kind.size))
            middle, scales = LEAST[self.dtype], steps.reshape(n, -1)
            offsets = least.reshape(n, -1) + scales * np.float32(middle)
            data = packed(q.reshape(n, -1, BLOCK) + np.uint8(stands_for_zero(fmt) - middle), fmt)
        else:
            scales = np.ascontiguousarray(blocks[:, :, :2]).view("<f2")[:, :, 0].astype(np.float32)
            data = paired(blocks[:, :, 2:]) if self.dtype == "Q4_0" else blocks[:, :, 2:] ^ np.uint8(128)
            offsets = np.zeros_like(scales)
        if not (np.isfinite(scales).all() and np.isfinite(offsets).all()):
            raise BadTensor(f"{name}: holds values that are not finite")
        return data, scales, offsets

    def in_parts(self, name: str, first: int, n: int) -> tuple[Bytes, Float, Bytes]:
        """Rows of a type of `PARTED` as a bundle stores them: bytes [n, ...], scales of 256 values [n, ...], parts
        [n, blocks]."""
        blocks = self._rows(name, first, n).reshape(-1, self.kind.size)
        codes, parts, scales = in_parts(self.dtype, blocks)
        if not np.isfinite(scales).all():
            raise BadTensor(f"{name}: holds values that are not finite")
        data = packed(codes.reshape(n, -1), OWN[self.dtype])
        return data, scales.reshape(n, -1), parts.reshape(n, -1)

    def _vector(self, name: str) -> Float:
        return dequantize(self.kind, self._raw(name, 0, 1, prod(self.shape)))[0]

    def _ordered(self, first: int, n: int, values: Any, name: str = "") -> Float:
        if values is None:
            return dequantize(self.kind, self._rows(name, first, n))
        start, at = self._whereabouts(first, n)
        return values[start + at]

    def _rows(self, name: str, first: int, n: int) -> Bytes:
        """Rows as stored, uint8 [n, bytes of a row]."""
        start, at = self._whereabouts(first, n)
        span = int(at.max(initial=-1)) + 1
        return self._raw(name, start, span, self.shape[-1])[at]

    def _whereabouts(self, first: int, n: int) -> tuple[int, NDArray[np.int64]]:
        """Where rows are in the file: after row `start`, at [n]. A head's rows stay within the head."""
        rows = np.arange(first, first + n)
        if self.turned:
            rotated = self.rotated or self.head_dim
            half = max(1, rotated // 2)
            head, channel = np.divmod(rows, self.head_dim)
            pairs = head * self.head_dim + channel % half * 2 + channel // half
            rows = np.where((rows < self.turned) & (channel < rotated), pairs, rows)
        start = int(rows.min(initial=first))
        return start, rows - start

    def _raw(self, name: str, first: int, n: int, width: int) -> Bytes:
        """n rows of so many values each, uint8 [n, bytes]."""
        row = width // self.kind.block * self.kind.size
        with self.file.open("rb") as file:
            file.seek(self.offset + first * row)
            raw = np.fromfile(file, np.uint8, n * row)
        if len(raw) != n * row:
            raise BadTensor(f"{name}: {self.file} is shorter than its header says")
        return raw.reshape(n, row)


def paired(blocks: Bytes) -> Bytes:
    """Blocks [..., 16] with value j and value j + 16 in byte j, as blocks of neighbouring values in a byte.

    Of values 0 1 2 … 31 the first byte holds 0 and 16 before, 0 and 1 after. The value stays q + 8.
    """
    values = np.concatenate([blocks & 15, blocks >> 4], axis=-1)
    assert values.shape[-1] == BLOCK
    return values[..., 0::2] | values[..., 1::2] << 4
