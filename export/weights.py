"""The weights file: every tensor of the model and the tables its graphs need, one after another.

Tensors are read, quantized and written a few million values at a time, so that the largest
embedding costs no more memory than the smallest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle import ALIGN
from edgedec.export.quantize import quantize
from edgedec.manifest import Tensor, WeightFormat
from edgedec.spec import ModelSpec, Rope

Read = Callable[[int, int], NDArray[np.float32]]
_CHUNK = 4 << 20
_ROPE_ROWS = 4096


class WeightsFile:
    """Appends arrays at aligned offsets."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = 0
        self.tensors: dict[str, Tensor] = {}

    def array(self, array: NDArray[Any]) -> int:
        """Write one array; returns its offset."""
        offset = self._align()
        self._write(array)
        return offset

    def tensor(self, name: str, read: Read, shape: tuple[int, ...], fmt: WeightFormat, block: int) -> None:
        """Write a weight in `fmt`; vectors are always f32."""
        if len(shape) == 1:
            self.tensors[name] = Tensor("f32", shape, self.array(read(0, shape[0])))
        elif fmt == "f32" or fmt == "f16":
            offset = self._align()
            for start, stop in _chunks(shape):
                self._write(read(start, stop).astype(np.float32 if fmt == "f32" else np.float16))
            self.tensors[name] = Tensor(fmt, shape, offset)
        else:
            offset, scales = self._align(), []
            for start, stop in _chunks(shape):
                data, chunk_scales = quantize(read(start, stop), fmt, block)
                self._write(data)
                scales.append(chunk_scales)
            self.tensors[name] = Tensor(fmt, shape, offset, self.array(np.concatenate(scales)), block)

    def rope(self, rope: Rope, context: int) -> tuple[int, int]:
        """Write the cos and the sin table [context, pairs] of a rope; returns their offsets."""
        offsets = []
        for function in (np.cos, np.sin):
            offsets.append(self._align())
            for start in range(0, context, _ROPE_ROWS):
                positions = np.arange(start, min(start + _ROPE_ROWS, context))
                angles = positions[:, None] * np.array(rope.inv_freq)
                self._write((rope.scale * function(angles)).astype(np.float32))
        return offsets[0], offsets[1]

    def _align(self) -> int:
        padding = -self.size % ALIGN
        self._file.write(bytes(padding))
        self.size += padding
        return self.size

    def _write(self, array: NDArray[Any]) -> None:
        raw = np.ascontiguousarray(array)
        self._file.write(raw.data)
        self.size += raw.nbytes


def _chunks(shape: tuple[int, ...]) -> list[tuple[int, int]]:
    rows = max(1, _CHUNK // shape[1])
    return [(start, min(start + rows, shape[0])) for start in range(0, shape[0], rows)]


def format_of(name: str, body: WeightFormat, head: WeightFormat, embed: WeightFormat) -> WeightFormat:
    """The format a tensor is stored in."""
    return {"embed": embed, "head": head}.get(name, body)


def names_of(spec: ModelSpec, layer: int) -> list[str]:
    """The tensors of one layer."""
    return [name for name in spec.tensors() if name.startswith(f"layers.{layer}.")]
