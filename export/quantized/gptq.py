"""GPTQ (Frantar et al. 2022), as AutoGPTQ and GPTQModel store it.

`qweight` int32 [in * bits / 32, out] holds an output's codes down its column; `qzeros` int32 [groups, out * bits / 32]
the zero points of a group's outputs, less one in the checkpoint format `gptq` (v1) and as they are in `gptq_v2`;
`scales` float16 [groups, out]; `g_idx` int32 [in] the group of each input. With `desc_act` groups are of inputs sorted
by how much they matter, so that neighbours are of different groups: then there are values only, no integers that a
bundle has a place for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.errors import BadTensor, CheckpointError
from edgedec.export.quantized import Found, QuantizedMatrix
from edgedec.export.quantized._matrix import Codes, IntegerMatrix
from edgedec.export.quantized._reading import columns, floats, integers, require_shape, tensor, unpacked
from edgedec.export.safetensors import Array, Stored

SUFFIX = ".qweight"
# What is added to a stored zero point, by checkpoint format.
_ZERO_ADD = {"gptq": 1, "gptq_v2": 0}


def matrices(settings: Mapping[str, Any], tensors: Mapping[str, Stored]) -> Found:
    """Every module that has a qweight."""
    form = settings.get("checkpoint_format") or "gptq"
    if form not in _ZERO_ADD:
        formats = " and ".join(_ZERO_ADD)
        raise CheckpointError(f"config.json: checkpoint_format {form!r:.40} of GPTQ is not supported, only {formats}")
    found, used, spare = dict[str, QuantizedMatrix](), set[str](), set[str]()
    for name in tensors:
        if name.endswith(SUFFIX):
            module = name.removesuffix(SUFFIX)
            found[f"{module}.weight"] = _matrix(module, tensors, _ZERO_ADD[form])
            used |= {f"{module}.{part}" for part in ("qweight", "qzeros", "scales", "g_idx")} & set(tensors)
            spare |= nothing_added(module, tensors)
    return Found(found, frozenset(used), frozenset(spare))


def nothing_added(module: str, tensors: Mapping[str, Stored]) -> set[str]:
    """The module's bias if it is zero: some programs write one for every module."""
    name = f"{module}.bias"
    stored = tensors.get(name)
    return {name} if stored and stored.dtype.endswith("16") and not floats(name, stored).any() else set()


def _matrix(module: str, tensors: Mapping[str, Stored], zero_add: int) -> QuantizedMatrix:
    qweight = tensor(tensors, f"{module}.qweight", "I32", 2)
    qzeros = tensor(tensors, f"{module}.qzeros", "I32", 2)
    scales = tensor(tensors, f"{module}.scales", "F16 BF16 F32", 2)
    packed, n = qweight.shape
    groups, place = scales.shape[0], tensors.get(f"{module}.g_idx")
    bits = _bits(f"{module}.qzeros", qzeros, n)
    k = place.shape[0] if place and len(place.shape) == 1 else packed * 32 // bits
    require_shape(f"{module}.scales", scales, (groups, n))
    require_shape(f"{module}.qzeros", qzeros, (groups, -(-n * bits // 32)))
    if not groups or packed != -(-k * bits // 32) or (k % groups and not place):
        raise BadTensor(f"{module}.qweight: {packed} rows of {bits} bits are not {groups} groups")
    group, order = _order(module, place, k, groups)
    dtype = f"GPTQ int{bits}"
    return GptqMatrix(qweight.file.name, (n, k), dtype, bits, group, module, qweight, qzeros, scales, zero_add, order)


def _bits(name: str, qzeros: Stored, n: int) -> int:
    """How many bits a zero point has, and so a code."""
    bits = qzeros.shape[1] * 32 // n if n else 0
    if bits not in (2, 3, 4, 8):
        raise BadTensor(f"{name}: {bits} bits for each of {n} outputs; known: 2, 3, 4 and 8")
    return bits


def _order(module: str, place: Stored | None, k: int, groups: int) -> tuple[int, npt.NDArray[np.int64] | None]:
    """The size of a group, and the group of each input if neighbours are of different ones."""
    size = -(-k // groups)
    if place is None:
        return size, None
    name = f"{module}.g_idx"
    require_shape(name, place, (k,))
    found = integers(name, tensor({name: place}, name, "I32", 1)).astype(np.int64)
    if found.max(initial=0) >= groups:
        raise BadTensor(f"{name}: names group {found.max()} of {groups}")
    if groups > 1 and found[-1] == groups - 1:  # a short last group
        size = int((found == 0).sum())
    same = size > 0 and np.array_equal(found, np.arange(k) // size)
    return (size, None) if same else (k, found)


@dataclass(frozen=True, eq=False)
class GptqMatrix(IntegerMatrix):
    """One module. sorted: the group of each input, if neighbours are of different ones."""

    module: str
    qweight: Stored
    qzeros: Stored
    stored_scales: Stored
    zero_add: int
    sorted: npt.NDArray[np.int64] | None

    @property
    def order(self) -> npt.NDArray[np.int64] | None:
        return self.sorted

    def codes(self, start: int, stop: int) -> Codes:
        words = columns(f"{self.module}.qweight", self.qweight, start, stop)
        return unpacked(words.T, self.bits)[:, : self.shape[1]]

    def scales(self, start: int, stop: int) -> Array:
        return floats(f"{self.module}.scales", self.stored_scales)[:, start:stop].T

    def zeros(self, start: int, stop: int) -> Codes:
        stored = unpacked(integers(f"{self.module}.qzeros", self.qzeros), self.bits)[:, start:stop]
        return (stored.T + np.uint8(self.zero_add)) & np.uint8((1 << self.bits) - 1)
