"""The addresses of a bundle's weights in the tables of a library."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle import Bundle
from edgedec.bundle.interleave import pack, packed_zeros, zeros_by_row
from edgedec.bundle.manifest import Tensor
from edgedec.runtimes.tvm import host
from edgedec.runtimes.tvm.frame import LANES, block_fields, end_fields, table_width
from edgedec.spec import Attention, Ssm

_FILL = {"int4": 0x88888888, "int8": 0x80808080}
_FLOATS = {"f32": np.float32, "f16": np.float16}


class Tables:
    """`words` [blocks + 1, width]: of each block, then of the ends, the addresses of its tensors. views: for each block
    with a cache or state, the index of its view number in its line."""

    def __init__(self, bundle: Bundle, offsets: dict[int, int]) -> None:
        self._bundle, self._kept = bundle, list[NDArray[Any]]()
        spec = bundle.spec
        width = table_width(spec)
        self.words = host.zeros((spec.n_blocks + 1) * width, np.int64).reshape(-1, width)
        self.views: dict[int, int] = {}
        for b, block in enumerate(spec.blocks):
            fields = block_fields(block, spec.hidden_size)
            self._tensors(self.words[b], fields, f"blocks.{b}.")
            if isinstance(block, Attention):
                self._attention(self.words[b], fields, b, block, offsets)
            if isinstance(block, Ssm):
                self._recurrent(self.words[b], fields, b)
        self._tensors(self.words[-1], end_fields(spec), "")

    def _attention(
        self, line: NDArray[np.int64], fields: dict[str, int], b: int, block: Attention, offsets: dict[int, int]
    ) -> None:
        line[fields["page_offset"]], self.views[b] = offsets[b], fields["view"]
        if block.rope is None:
            return
        pairs = len(self._bundle.spec.ropes[block.rope].inv_freq)
        shape = (self._bundle.spec.positions, pairs)
        for name, at in zip(("cos", "sin"), self._bundle.manifest.ropes[block.rope], strict=True):
            line[fields[name]] = self._address(self._bundle.array(at, np.float32, shape))

    def _recurrent(self, line: NDArray[np.int64], fields: dict[str, int], b: int) -> None:
        """The convolution's weights lie tap by tap, so that neighbouring channels are neighbours."""
        self.views[b] = fields["view"]
        t = self._bundle.manifest.tensors[f"blocks.{b}.conv"]
        line[fields["conv"]] = self._address(np.ascontiguousarray(self._bundle.array(t.data, np.float32, t.shape).T))

    def _tensors(self, line: NDArray[np.int64], fields: dict[str, int], prefix: str) -> None:
        for name, at in fields.items():
            t = self._bundle.manifest.tensors.get(prefix + name)
            if t is None:
                continue
            if t.format in _FLOATS:
                line[at] = self._address(self._bundle.array(t.data, _FLOATS[t.format], t.shape))
                continue
            words = t.blocks * t.block_bytes // 4
            line[at] = self._address(self._packed(t, t.data, np.uint32, words, _FILL[t.format]))
            line[fields[f"{name}.scales"]] = self._address(self._packed(t, t.scales, np.uint16, t.blocks, 0))
            if t.zeros:
                line[fields[f"{name}.zeros"]] = self._address(self._zeros(t))

    def _packed(self, t: Tensor, at: int, dtype: Any, words: int, fill: int) -> NDArray[Any]:
        """Words of a matrix in groups of 16 rows: in place, or packed once."""
        if t.layout == "interleave16":
            return self._bundle.array(at, dtype, (t.groups, words, LANES))
        return pack(self._bundle.array(at, dtype, (t.shape[0], words)), fill)

    def _zeros(self, t: Tensor) -> NDArray[np.uint8]:
        """Zero points of a matrix as 16 rows side by side."""
        stored = self._bundle.array(t.zeros, np.uint8, (t.zero_bytes,))
        if t.layout == "interleave16":
            return stored
        return packed_zeros(zeros_by_row(stored.reshape(t.shape[0], -1), t), replace(t, layout="interleave16")).ravel()

    def _address(self, array: NDArray[Any]) -> int:
        """The address of an array at a multiple of 64; unaligned arrays are copied."""
        if array.ctypes.data % 64:
            moved = host.aligned(array.size, array.dtype)
            moved[:] = array.reshape(-1)
            array = moved
        self._kept.append(array)
        return int(array.ctypes.data)
