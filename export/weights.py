"""The weights file: every tensor of the model and the tables its graphs need, one after another.

Tensors are read, quantized and written a few million values at a time, so that the largest
embedding costs no more memory than the smallest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.folder import ALIGN
from edgedec.bundle.integers import filler, stands_for_zero
from edgedec.bundle.interleave import pack, packed_zeros
from edgedec.bundle.manifest import LANES, Tensor, WeightFormat, WeightLayout
from edgedec.export.quantize import Bytes, Format, Half, quantize
from edgedec.spec import ModelSpec, Rope

Read = Callable[[int, int], NDArray[np.float32]]


@dataclass(frozen=True)
class Kept:
    """A weight that is quantized already. rows: data and scales of rows start..stop as `quantize` gives them, and their
    zero points, or offsets as float16, [n, blocks], or None if there are none. parts: what it gives instead are parts
    of scales (`Tensor.parts`). row_scales: those of a row are the same."""

    format: Format
    block: int
    rows: Callable[[int, int], tuple[Bytes, Half, Bytes | Half | None]]
    parts: bool = False
    row_scales: bool = False


ROW = 0  # as a block: all weights of a row share a scale, which every block of ROW_BLOCK has
ROW_BLOCK = 32
_CHUNK = 4 << 20
_ROPE_ROWS = 4096


class WeightsFile:
    """Appends arrays at aligned offsets; quantized matrices in `layout`."""

    def __init__(self, file: BinaryIO, layout: WeightLayout = "rows", gathered: Collection[str] = ("lookup",)) -> None:
        """gathered: matrices of which a row a token is read, so it lies by itself."""
        self._file, self._layout, self._gathered = file, layout, gathered
        self.size = 0
        self.tensors: dict[str, Tensor] = {}

    def array(self, array: NDArray[Any]) -> int:
        """Write one array; returns its offset."""
        offset = self._align()
        self._write(array)
        return offset

    def tensor(
        self, name: str, read: Read, shape: tuple[int, ...], fmt: WeightFormat, block: int, kept: Kept | None = None
    ) -> None:
        """Write a weight in `fmt`; `kept` gives the rows if it is stored in `fmt` already."""
        if len(shape) == 1:
            self.tensors[name] = Tensor("f32", shape, self.array(read(0, shape[0])))
        elif fmt == "f32" or fmt == "f16":
            offset = self._align()
            for start, stop in _chunks(shape):
                self._write(read(start, stop).astype(np.float32 if fmt == "f32" else np.float16))
            self.tensors[name] = Tensor(fmt, shape, offset)
        else:
            rounded = rounded_rows(fmt, block, read)
            layout: WeightLayout = "rows" if name in self._gathered else self._layout
            self.tensors[name] = self._quantized(kept or rounded, shape, layout)

    def _quantized(self, kept: Kept, shape: tuple[int, ...], layout: WeightLayout) -> Tensor:
        offset, fmt, scales, zeros = self._align(), kept.format, list[Half](), list[NDArray[Any]]()
        for start, stop in _chunks(shape, step=LANES):
            data, chunk_scales, chunk_zeros = kept.rows(start, stop)
            zeros += [] if chunk_zeros is None else [chunk_zeros]
            if layout == "interleave16":
                words, chunk_scales = packed(data, chunk_scales, fmt)
                self._write(words)
            else:
                self._write(data)
            scales.append(chunk_scales)
        tensor = Tensor(
            fmt, shape, offset, self.array(np.concatenate(scales)), kept.block, layout, row_scales=kept.row_scales
        )
        if kept.parts:
            parts = np.concatenate(zeros)
            return replace(tensor, parts=self.array(parts if layout == "rows" else pack(parts, 0)))
        if zeros and zeros[0].dtype == np.float16:
            offsets = np.concatenate(zeros)
            return replace(tensor, offsets=self.array(offsets if layout == "rows" else pack(offsets, 0)))
        if all((chunk == stands_for_zero(fmt)).all() for chunk in zeros):
            return tensor
        return replace(tensor, zeros=self.array(packed_zeros(np.concatenate(zeros), tensor)))

    def rope(self, rope: Rope, spec: ModelSpec) -> tuple[int, int]:
        """Write the cos and the sin table [positions, pairs] of a rope; returns their offsets."""
        offsets = []
        for function in (np.cos, np.sin):
            offsets.append(self._align())
            for start in range(0, spec.positions, _ROPE_ROWS):
                positions = np.arange(start, min(start + _ROPE_ROWS, spec.positions))
                angles = rope.angles(positions, spec.original_length)
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


def rounded_rows(fmt: Format, block: int, read: Read) -> Kept:
    """The rows that `read` gives as floats, rounded in blocks of `block`, or with one scale each (of int8 alone)."""
    whole = block == ROW and fmt == "int8"

    def rows(start: int, stop: int) -> tuple[Bytes, Half, None]:
        floats = read(start, stop)
        if not whole:
            return *quantize(floats, fmt, block or ROW_BLOCK), None
        blocks = -(-floats.shape[1] // ROW_BLOCK)
        data, scales = quantize(floats, fmt, blocks * ROW_BLOCK)
        return data.reshape(len(data), blocks, -1), np.repeat(scales, blocks, axis=1), None

    return Kept(fmt, block or ROW_BLOCK, rows, row_scales=whole)


def packed(data: Bytes, scales: Half, fmt: Format) -> tuple[NDArray[np.uint32], Half]:
    """The result of `quantize` in the layout interleave16; the rows that fill up the last group are zeros.

    data uint8 [n, blocks, bytes of a block] -> uint32 [groups, blocks * bytes of a block / 4, 16];
    scales [n, blocks] -> [groups, blocks, 16].
    """
    words = np.ascontiguousarray(data).reshape(len(data), -1).view(np.uint32)
    return pack(words, filler(fmt)), pack(scales, 0)


def _chunks(shape: tuple[int, ...], step: int = 1) -> list[tuple[int, int]]:
    """All rows of a matrix, a few million values at a time; every chunk but the last is whole steps."""
    rows = max(1, _CHUNK // shape[1] // step) * step
    return [(start, min(start + rows, shape[0])) for start in range(0, shape[0], rows)]


def format_of(spec: ModelSpec, name: str, body: WeightFormat, head: WeightFormat, embed: WeightFormat) -> WeightFormat:
    """The format a tensor is stored in: only matrices are quantized."""
    if name not in spec.matrices:
        return "f32"
    return {"embed": embed, "head": head, "lookup": embed}.get(name, body)
