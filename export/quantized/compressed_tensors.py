"""compressed-tensors, as llm-compressor writes it: integers of 4 or 8 bits in words (`pack-quantized`), int8
(`int-quantized`), FP8 (`float-quantized`), or NVFP4 (`nvfp4-pack-quantized`).

Of a module: `weight_packed` int32 [out, in * bits / 32] and `weight_shape`, or `weight` int8 or E4M3 [out, in];
`weight_scale` [out, groups] (one group: by output; one number: by tensor); unless symmetric `weight_zero_point`, in
words along the outputs or int8; `weight_g_idx` if groups are of sorted inputs. Integers are signed there and stored
here with 8 or 128 added, and so are their zero points.

Of NVFP4: `weight_packed` uint8 [out, in / 2], `weight_scale` E4M3 [out, in / 16], and `weight_global_scale`, one
float32 that divides these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.errors import BadTensor, CheckpointError
from edgedec.export.quantized import Found, QuantizedMatrix
from edgedec.export.quantized._float8 import float8
from edgedec.export.quantized._matrix import Codes, IntegerMatrix
from edgedec.export.quantized._nvfp4 import nvfp4
from edgedec.export.quantized._reading import floats, integers, require_shape, tensor, unpacked
from edgedec.export.safetensors import Array, Stored

_NVFP4, _MIXED = "nvfp4-pack-quantized", "mixed-precision"
FORMATS = ("pack-quantized", "int-quantized", "naive-quantized", "float-quantized", _NVFP4, _MIXED, "dense")
# Scales of activations and caches, which a bundle's engines do not use.
_SPARE = (
    ".input_scale",
    ".input_global_scale",
    ".input_zero_point",
    ".output_scale",
    ".output_zero_point",
    ".k_scale",
    ".v_scale",
    ".q_scale",
    ".k_zero_point",
    ".v_zero_point",
)
_PARTS = (
    "weight",
    "weight_packed",
    "weight_shape",
    "weight_scale",
    "weight_global_scale",
    "weight_zero_point",
    "weight_g_idx",
)


def matrices(settings: Mapping[str, Any], tensors: Mapping[str, Stored]) -> Found:
    """Every module with a weight_scale."""
    _require_known(settings)
    block = _block_of(settings)
    found, used = dict[str, QuantizedMatrix](), set[str]()
    for name in tensors:
        if not name.endswith(".weight_scale"):
            continue
        module = name.removesuffix(".weight_scale")
        four = _is_nvfp4(module, tensors, settings.get("format"))
        found[f"{module}.weight"] = _nvfp4(module, tensors) if four else _matrix(module, tensors, block)
        used |= {f"{module}.{part}" for part in _PARTS} & set(tensors)
    return Found(found, frozenset(used), frozenset(name for name in tensors if name.endswith(_SPARE)))


def _require_known(settings: Mapping[str, Any]) -> None:
    """Refuse settings that change more than the storage of weights."""
    form = settings.get("format", "dense")
    if form not in FORMATS:
        known = ", ".join(FORMATS)
        raise CheckpointError(f"config.json: format {form!r:.40} of compressed-tensors is not one of {known}")
    sparsity = settings.get("sparsity_config") or {}
    if not isinstance(sparsity, dict) or sparsity.get("format", "dense") != "dense":
        raise CheckpointError("config.json: sparse weights (sparsity_config) are not supported; save them dense")
    transform = settings.get("transform_config") or {}
    if not isinstance(transform, dict) or transform.get("config_groups"):
        raise CheckpointError("config.json: transforms at run time (transform_config) are not supported")


def _block_of(settings: Mapping[str, Any]) -> tuple[int, int] | None:
    """The block structure that any group of modules names."""
    groups = settings.get("config_groups") or {}
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        match weights.get("block_structure") if isinstance(weights, dict) else None:
            case [int(rows), int(width)] if rows > 0 and width > 0:
                return rows, width
    return None


def _is_nvfp4(module: str, tensors: Mapping[str, Stored], form: Any) -> bool:
    """Whether its weights are of 4-bit floats; CheckpointError if the format of the checkpoint is another."""
    packed = tensors.get(f"{module}.weight_packed")
    four = (packed is not None and packed.dtype == "U8") or f"{module}.weight_global_scale" in tensors
    if form != _MIXED and four != (form == _NVFP4):
        kind = "4-bit floats with a global scale" if four else "no 4-bit floats"
        raise CheckpointError(f"{module}: holds {kind}, and config.json has the format {form!r:.40}")
    return four


def _nvfp4(module: str, tensors: Mapping[str, Stored]) -> QuantizedMatrix:
    if f"{module}.weight_zero_point" in tensors:
        raise BadTensor(f"{module}.weight_zero_point: NVFP4 has no zero points")
    of = f"{module}.weight"
    return nvfp4(f"{of}_packed", f"{of}_scale", f"{of}_global_scale", tensors, divides=True)


def _matrix(module: str, tensors: Mapping[str, Stored], block: tuple[int, int] | None) -> QuantizedMatrix:
    scale = tensors[f"{module}.weight_scale"]
    if f"{module}.weight_packed" in tensors:
        return _packed(module, tensors, scale)
    name = f"{module}.weight"
    weight = tensor(tensors, name, "I8 F8_E4M3", 2)
    if weight.dtype == "F8_E4M3":
        return float8(name, weight, f"{module}.weight_scale", scale, block)
    return _integers(module, tensors, weight, scale, (weight.shape[0], weight.shape[1]), 8)


def _packed(module: str, tensors: Mapping[str, Stored], scale: Stored) -> QuantizedMatrix:
    packed = tensor(tensors, f"{module}.weight_packed", "I32", 2)
    name = f"{module}.weight_shape"
    shape = tensor(tensors, name, "I64 I32", 1)
    require_shape(name, shape, (2,))
    n, k = (int(size) for size in integers(name, shape))
    bits = next((bits for bits in (4, 8) if packed.shape == (n, -(-k * bits // 32)) and k > 0), 0)
    if not bits:
        raise BadTensor(f"{module}.weight_packed: {list(packed.shape)} words are not {[n, k]} integers of 4 or 8 bits")
    return _integers(module, tensors, packed, scale, (n, k), bits)


def _integers(
    module: str, tensors: Mapping[str, Stored], weight: Stored, scale: Stored, shape: tuple[int, int], bits: int
) -> QuantizedMatrix:
    n, k = shape
    groups = 1 if prod(scale.shape) == 1 or len(scale.shape) < 2 else scale.shape[1]
    if not groups or k % groups:
        raise BadTensor(f"{module}.weight_scale: {groups} groups of {k} inputs")
    require_shape(f"{module}.weight_scale", scale, (n, groups), (), (1,), (n,), (1, 1))
    zero = tensors.get(f"{module}.weight_zero_point")
    if zero is not None:
        words = zero.dtype == "I32"
        tensor(tensors, f"{module}.weight_zero_point", "I32 I8", 2 if words else len(zero.shape))
        shapes = [(-(-n * bits // 32), groups)] if words else [scale.shape]
        require_shape(f"{module}.weight_zero_point", zero, *shapes)
    order = _order(module, tensors, k, k // groups)
    return CompressedMatrix(
        weight.file.name,
        shape,
        f"compressed-tensors int{bits}",
        bits,
        k // groups,
        module,
        weight,
        scale,
        zero,
        order,
    )


def _order(module: str, tensors: Mapping[str, Stored], k: int, group: int) -> npt.NDArray[np.int64] | None:
    """The group of each input if neighbours are of different ones."""
    name = f"{module}.weight_g_idx"
    if name not in tensors:
        return None
    place = tensor(tensors, name, "I32", 1)
    require_shape(name, place, (k,))
    found = integers(name, place).astype(np.int64)
    if (found == np.uint32(0xFFFF_FFFF)).all() or np.array_equal(found, np.arange(k) // group):
        return None
    if found.max(initial=0) >= k // group:
        raise BadTensor(f"{name}: names group {found.max()} of {k // group}")
    return found


@dataclass(frozen=True, eq=False)
class CompressedMatrix(IntegerMatrix):
    """One module. sorted: the group of each input, if neighbours are of different ones."""

    module: str
    weight: Stored
    scale: Stored
    zero: Stored | None
    sorted: npt.NDArray[np.int64] | None

    @property
    def order(self) -> npt.NDArray[np.int64] | None:
        return self.sorted

    def codes(self, start: int, stop: int) -> Codes:
        if self.weight.dtype == "I8":
            return integers(f"{self.module}.weight", self.weight, start, stop).view(np.uint8) ^ np.uint8(128)
        words = integers(f"{self.module}.weight_packed", self.weight, start, stop)
        return unpacked(words, self.bits)[:, : self.shape[1]]

    def scales(self, start: int, stop: int) -> Array:
        name = f"{self.module}.weight_scale"
        return np.ascontiguousarray(self._by_row(floats(name, _listed(self.scale)), start, stop))

    def zeros(self, start: int, stop: int) -> Codes:
        name, usual = f"{self.module}.weight_zero_point", np.uint8(1 << self.bits - 1)
        if self.zero is None:
            return np.full((stop - start, self._groups), usual)
        if self.zero.dtype == "I32":
            found = unpacked(integers(name, self.zero).T, self.bits).T[: self.shape[0]]
            return found[start:stop]
        signed = self._by_row(integers(name, _listed(self.zero)), start, stop).astype(np.int16) + int(usual)
        if ((signed < 0) | (signed > 2 * int(usual) - 1)).any():
            raise BadTensor(f"{name}: a zero point beyond {self.bits} bits")
        return signed.astype(np.uint8)

    @property
    def _groups(self) -> int:
        return self.shape[1] // self.group

    def _by_row(self, values: npt.NDArray[Any], start: int, stop: int) -> npt.NDArray[Any]:
        """Values for each output and group, or one for all -> those of rows start to stop-1 [n, groups]."""
        if len(values) == 1:
            return np.broadcast_to(values.reshape(1, 1), (stop - start, self._groups))
        return values.reshape(self.shape[0], self._groups)[start:stop]


def _listed(stored: Stored) -> Stored:
    """The same numbers as a vector; a scalar has one."""
    return Stored(stored.file, stored.dtype, (prod(stored.shape),), stored.offset, stored.size)
