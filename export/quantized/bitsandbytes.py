"""bitsandbytes (Dettmers et al. 2023): blocks of 4-bit numbers of a table (NF4, FP4), and int8 by output (LLM.int8).

4 bits: `weight` uint8 [values / 2, 1], the first value in the high nibble; `weight.quant_map` float32 [16], the table;
`weight.absmax`, the factor of each block, float32, or with double quantization uint8 numbers of
`weight.nested_quant_map` [256] with factors `weight.nested_absmax` and an offset; the sizes stand as JSON in
`weight.quant_state.bitsandbytes__nf4`. A bundle has no such table, so its format rounds them anew. 8 bits: `weight`
int8 [out, in] times `SCB` [out] / 127.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from edgedec.errors import BadTensor
from edgedec.export.quantized import Found, QuantizedMatrix
from edgedec.export.quantized._matrix import Codes, IntegerMatrix
from edgedec.export.quantized._reading import floats, integers, require_shape, tensor
from edgedec.export.safetensors import Array, Stored

_STATES = (".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4")
_PARTS = ("absmax", "quant_map", "nested_absmax", "nested_quant_map")
_MOST_JSON = 4096


def matrices(settings: Mapping[str, Any], tensors: Mapping[str, Stored]) -> Found:
    """Every weight with a quant_state or an SCB."""
    found, used, spare = dict[str, QuantizedMatrix](), set[str](), set[str]()
    for name in tensors:
        for state in _STATES:
            if name.endswith(state):
                weight = name.removesuffix(state)
                found[weight] = _four_bits(weight, name, tensors)
                used |= {weight, name, *(f"{weight}.{part}" for part in _PARTS)} & set(tensors)
        if name.endswith(".SCB"):
            module = name.removesuffix(".SCB")
            found[f"{module}.weight"] = _eight_bits(module, tensors)
            used |= {f"{module}.weight", name}
            spare |= {f"{module}.weight_format"} & set(tensors)
    return Found(found, frozenset(used), frozenset(spare))


def _eight_bits(module: str, tensors: Mapping[str, Stored]) -> QuantizedMatrix:
    weight = tensor(tensors, f"{module}.weight", "I8", 2)
    scale = tensor(tensors, f"{module}.SCB", "F32 F16 BF16", 1)
    n, k = weight.shape
    require_shape(f"{module}.SCB", scale, (n,))
    return Int8Matrix(f"{module}.weight", (n, k), "LLM.int8", 8, k, weight, f"{module}.SCB", scale)


@dataclass(frozen=True, eq=False)
class Int8Matrix(IntegerMatrix):
    """A scale for each output."""

    weight: Stored
    scale_name: str
    scale: Stored

    def codes(self, start: int, stop: int) -> Codes:
        return integers(self.name, self.weight, start, stop).view(np.uint8) ^ np.uint8(128)

    def scales(self, start: int, stop: int) -> Array:
        return floats(self.scale_name, self.scale, start, stop)[:, None] / np.float32(127)

    def zeros(self, start: int, stop: int) -> Codes:
        return np.full((stop - start, 1), 128, np.uint8)


def _four_bits(name: str, state_name: str, tensors: Mapping[str, Stored]) -> QuantizedMatrix:
    state = _state(state_name, tensor(tensors, state_name, "U8", 1))
    shape = _sizes(state_name, state, "shape", 2)
    (block,) = _sizes(state_name, {"blocksize": [state.get("blocksize")]}, "blocksize", 1)
    values = shape[0] * shape[1]
    weight = tensors.get(name)
    if weight is None or weight.dtype != "U8" or weight.size != -(-values // 2):
        raise BadTensor(f"{name}: not {-(-values // 2)} bytes, as the {list(shape)} of {state_name} need")
    table = tensor(tensors, f"{name}.quant_map", "F32", 1)
    require_shape(f"{name}.quant_map", table, (16,))
    blocks = -(-values // block)
    absmax = _absmax(name, state_name, state, tensors, blocks)
    kind = "NF4" if state_name.endswith("nf4") else "FP4"
    return TableMatrix(name, (shape[0], shape[1]), kind, weight, floats(f"{name}.quant_map", table), block, absmax)


def _state(name: str, stored: Stored) -> dict[str, Any]:
    if stored.size > _MOST_JSON:
        raise BadTensor(f"{name}: too long to be a quant_state")
    try:
        found = json.loads(integers(name, stored).tobytes().decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadTensor(f"{name}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadTensor(f"{name}: expected an object")
    return found


def _sizes(where: str, state: Mapping[str, Any], key: str, count: int) -> tuple[int, ...]:
    found = state.get(key)
    whole = isinstance(found, list) and len(found) == count and all(type(n) is int and 0 < n < 1 << 40 for n in found)
    if not whole:
        raise BadTensor(f"{where}: {key} must be {count} sizes, found {found!r:.40}")
    assert isinstance(found, list)
    return tuple(found)


@dataclass(frozen=True, eq=False)
class Absmax:
    """The factors of blocks; stored in 8 bits, they are numbers of a table with factors of their own, and an offset."""

    name: str
    stored: Stored
    table: Array | None = None
    factors: Array | None = None
    block: int = 0
    offset: float = 0.0

    def values(self, start: int, stop: int) -> Array:
        """The factors of blocks start to stop-1."""
        if self.table is None or self.factors is None:
            return floats(self.name, self.stored, start, stop)
        numbers = self.table[integers(self.name, self.stored, start, stop)]
        return numbers * self.factors[np.arange(start, stop) // self.block] + np.float32(self.offset)


def _absmax(name: str, state_name: str, state: Mapping[str, Any], tensors: Mapping[str, Stored], blocks: int) -> Absmax:
    own = f"{name}.absmax"
    stored = tensor(tensors, own, "F32 U8", 1)
    require_shape(own, stored, (blocks,))
    if stored.dtype == "F32":
        return Absmax(own, stored)
    table = tensor(tensors, f"{name}.nested_quant_map", "F32", 1)
    require_shape(f"{name}.nested_quant_map", table, (256,))
    (block,) = _sizes(state_name, {"nested_blocksize": [state.get("nested_blocksize")]}, "nested_blocksize", 1)
    factors = tensor(tensors, f"{name}.nested_absmax", "F32", 1)
    require_shape(f"{name}.nested_absmax", factors, (-(-blocks // block),))
    offset = state.get("nested_offset")
    if type(offset) not in (int, float):
        raise BadTensor(f"{state_name}: nested_offset must be a number, found {offset!r:.40}")
    tables = floats(f"{name}.nested_quant_map", table), floats(f"{name}.nested_absmax", factors)
    return Absmax(own, stored, *tables, block, float(offset or 0))


@dataclass(frozen=True, eq=False)
class TableMatrix(QuantizedMatrix):
    """Numbers of a table of 16, `block` after another times a factor; blocks run on over the ends of rows."""

    weight: Stored
    table: Array
    block: int
    absmax: Absmax

    @property
    def suggested(self) -> Literal["int4", "int8"]:
        return "int8"

    def floats(self, start: int, stop: int) -> Array:
        k = self.shape[1]
        first, last = start * k // 2, -(-stop * k // 2)
        flat = Stored(self.weight.file, "U8", (self.weight.size,), self.weight.offset, self.weight.size)
        data = integers(self.name, flat, first, last)
        codes = np.stack([data >> 4, data & 15], axis=-1).reshape(-1)[start * k - 2 * first :][: (stop - start) * k]
        block0 = start * k // self.block
        factors = self.absmax.values(block0, -(-stop * k // self.block))
        at = np.arange(start * k, stop * k) // self.block - block0
        return (self.table[codes] * factors[at]).reshape(stop - start, k)
