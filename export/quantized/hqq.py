"""HQQ (Badri and Shaji 2023, half-quadratic quantization), as hqq and transformers save it in safetensors.

A weight [out, in] is reshaped to [groups, group_size] (`axis` 1) or [group_size, groups] (`axis` 0), and a value is
(code - zero) * scale, `zero` and `scale` floats of its group; both in one tensor are `zero_scale`. `W_q` has R packed
rows, of which row r holds in its highest bits row r of the codes, then row r + R, r + 2 R, …; of 3 bits ten are in an
int32, and the rows are filled up. With `view_as_float` the same bytes are called floats.

What else a module needs is in scalars beside them, text as the numbers of its letters; `quant_config` of config.json
says the same of all modules, or of each by its name without numbers (`self_attn.q_proj`).

Groups along the inputs, of whole blocks of 32, keep their codes in a bundle, in blocks of 32 with offsets: the values
of the code in the middle. Scales and offsets are rounded to float16 where needed. Others are read as floats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from edgedec.bundle.integers import Integers, packed, stands_for_zero
from edgedec.errors import BadTensor, CheckpointError
from edgedec.export.quantized import Found, OwnMatrix, QuantizedMatrix
from edgedec.export.quantized._matrix import Codes, Half
from edgedec.export.quantized._reading import floats, integers, require_shape, tensor
from edgedec.export.safetensors import READABLE, Array, Stored
from edgedec.models import Part

_DATA = ".W_q"
# By the name of a packing: bits of a code, codes of a number, what the number is, and which `nbits` are stored so.
_PACKINGS = {
    "8bit_u8": (8, 1, "U8", (8, 6, 5)),
    "4bit_u8": (4, 2, "U8", (4,)),
    "3bit_32": (3, 10, "I32", (3,)),
    "2bit_u8": (2, 4, "U8", (2, 1)),  # 1: of 1.58 bits
    "1bit_u8": (1, 8, "U8", (1,)),
}
_CODES = {bits: codes for bits, codes, *_ in _PACKINGS.values()}
_FACTS = ("nbits", "group_size", "axis")
_FLAGS = ("quant_scale", "quant_zero", "view_as_float", "offload_meta", "encoded_state_dict", "stores_quant_config")
_OTHERS = ("unpack_view_dtype", "compute_dtype", "channel_wise", "optimize", "round_zero")
_PARTS = ("W_q", "scale", "zero", "zero_scale", "shape", "packing", *_FACTS, *_FLAGS, *_OTHERS)
_MOST, _MOST_TEXT = 1 << 40, 64
_BLOCK = 32
_ROWS = 4096  # whose scales are looked at together


def matrices(settings: Mapping[str, Any], tensors: Mapping[str, Stored]) -> Found:
    """Every module that has a W_q."""
    found, used = dict[str, QuantizedMatrix](), set[str]()
    for name in tensors:
        if name.endswith(_DATA):
            module = name.removesuffix(_DATA)
            found[f"{module}.weight"] = _matrix(module, tensors, _params(settings, module))
            used |= {f"{module}.{part}" for part in _PARTS} & set(tensors)
    return Found(found, frozenset(used))


def _params(settings: Mapping[str, Any], module: str) -> Mapping[str, Any]:
    """The settings of a module in config.json, empty if there are none."""
    found = settings.get("quant_config") or {}
    if isinstance(found, dict) and "weight_quant_params" not in found:
        tag = ".".join(part for part in module.split(".") if part not in ("model", "layers") and not part.isnumeric())
        found = found.get(tag) or {}
    params = found.get("weight_quant_params", {}) if isinstance(found, dict) else found
    if not isinstance(params, dict):
        raise CheckpointError(f"config.json: quant_config of {module} must be an object, found {params!r:.40}")
    return params


def _matrix(module: str, tensors: Mapping[str, Stored], params: Mapping[str, Any]) -> HqqMatrix:
    for flag in ("quant_scale", "quant_zero"):
        if _fact(module, flag, tensors, {flag: False}):
            raise CheckpointError(f"{module}: {flag}, quantized scales and zero points of HQQ, is not supported")
    nbits, size, axis = (_fact(module, key, tensors, params) for key in _FACTS)
    bits, codes, dtype = _packing(module, nbits, tensors)
    shape = tensor(tensors, f"{module}.shape", "I64 I32", 1)
    require_shape(f"{module}.shape", shape, (2,))
    n, k = (int(number) for number in integers(f"{module}.shape", shape))
    if not (0 < n < _MOST and 0 < k < _MOST and size > 0 and n * k % size == 0 and axis in (0, 1)):
        raise BadTensor(f"{module}: groups of {size} by axis {axis} are not of a weight {[n, k]}")
    rows, columns = (n * k // size, size) if axis else (size, n * k // size)
    data = _data(module, tensors, (-(-rows // codes), columns), dtype)
    scale, zero = _factors(module, tensors, (rows, 1) if axis else (1, columns))
    middle = 1 << nbits - 1
    return HqqMatrix(data.file.name, (n, k), f"HQQ int{bits}", module, data, scale, zero, bits, middle, size, axis)


def _fact(module: str, key: str, tensors: Mapping[str, Stored], params: Mapping[str, Any]) -> int:
    """A whole number of a module, which config.json must not contradict."""
    name, known = f"{module}.{key}", params.get(key)
    if known is not None and not (isinstance(known, int | float) and abs(known) < _MOST):
        raise CheckpointError(f"config.json: {key} {known!r:.40} of {module} is no size")
    if name not in tensors and known is not None:
        return int(known)
    stored = tensor(tensors, name, "I32 I64 U8 F32", 0)
    value = (floats if stored.dtype == "F32" else integers)(name, replace(stored, shape=(1,)))[0]
    if not abs(value) < _MOST:
        raise BadTensor(f"{name}: {value} is no size")
    if known is not None and key in _FACTS and int(value) != int(known):
        raise CheckpointError(f"{module}: its {key} is {int(value)}, and config.json says {known}")
    return int(value)


def _packing(module: str, nbits: int, tensors: Mapping[str, Stored]) -> tuple[int, int, str]:
    """Bits of a code, codes of a number, and what the number is."""
    name = f"{module}.packing"
    found = next((packing for packing, (*_, of) in _PACKINGS.items() if nbits in of), "")
    if name in tensors:
        stored = tensor(tensors, name, "U8", 1)
        found = integers(name, replace(stored, shape=(min(stored.size, _MOST_TEXT),))).tobytes().decode("latin-1")
    if found not in _PACKINGS or nbits not in _PACKINGS[found][3]:
        raise CheckpointError(f"{module}: nbits {nbits} packed as {found!r:.40}; known: {', '.join(_PACKINGS)}")
    return _PACKINGS[found][:3]


def _data(module: str, tensors: Mapping[str, Stored], shape: tuple[int, int], dtype: str) -> Stored:
    """The packed rows as integers, of whatever dtype their bytes are stored."""
    name, floating = f"{module}{_DATA}", _fact(module, "view_as_float", tensors, {"view_as_float": False})
    stored = tensor(tensors, name, " ".join(READABLE) if floating else dtype, 2)
    size = shape[0] * shape[1] * (4 if dtype == "I32" else 1)
    if stored.shape[0] != shape[0] or stored.size != size:
        raise BadTensor(f"{name}: {stored.dtype} {list(stored.shape)} is not {dtype} {list(shape)}")
    return replace(stored, dtype=dtype, shape=shape)


def _factors(module: str, tensors: Mapping[str, Stored], shape: tuple[int, int]) -> tuple[Stored, Stored]:
    """Scales and zero points, of `shape` both."""
    both = tensors.get(f"{module}.zero_scale")
    if both is not None:
        tensor(tensors, f"{module}.zero_scale", " ".join(READABLE), 3)
        require_shape(f"{module}.zero_scale", both, (2, *shape))
        half = replace(both, shape=shape, size=both.size // 2)
        return replace(half, offset=both.offset + half.size), half
    found = []
    for name in (f"{module}.scale", f"{module}.zero"):
        found.append(tensor(tensors, name, " ".join(READABLE), 2))
        require_shape(name, found[-1], shape)
    return found[0], found[1]


@dataclass(frozen=True, eq=False)
class HqqMatrix(OwnMatrix):
    """One module. data: the packed rows; scale, zero: of each group; bits: between codes; middle: of their range."""

    module: str
    data: Stored
    scale: Stored
    zero: Stored
    bits: int
    middle: int
    group: int
    axis: int

    @property
    def suggested(self) -> Literal["int4", "int8"]:
        return "int4" if self.bits <= 4 and self._fits else "int8"

    @property
    def own(self) -> Integers:
        return "int4" if self.bits <= 4 else "int8"

    @property
    def offsets(self) -> bool:
        return True

    def holds(self, part: Part) -> bool:
        return part.plain and self._fits

    @property
    def exact(self) -> bool:
        return self._rounded == 0

    @property
    def _fits(self) -> bool:
        """Whether groups are whole blocks, whose scales and offsets float16 has, if rounded."""
        whole = self.axis == 1 and self.group % _BLOCK == 0 and self.shape[1] % self.group == 0
        return whole and bool(np.isfinite(self._rounded))

    @cached_property
    def _rounded(self) -> float:
        """By how much float16 changes a scale or an offset at most; no number or infinite if it cannot hold one."""
        worst, groups = 0.0, self.scale.shape[0]
        for start in range(0, groups, _ROWS):
            for values in self._steps(start, min(start + _ROWS, groups)):
                with np.errstate(over="ignore", invalid="ignore"):
                    off = np.abs(values.astype(np.float16).astype(np.float32) - values).max(initial=0)
                worst = float(np.maximum(worst, off))
        return worst

    def _steps(self, start: int, stop: int) -> tuple[Array, Array]:
        """Scales and offsets of groups start to stop-1 along the inputs, each [n]."""
        scale, zero = self._factors(start, stop)
        with np.errstate(over="ignore", invalid="ignore"):
            return scale[:, 0], ((np.float32(self.middle) - zero) * scale)[:, 0]

    def stored(self, part: Part, fmt: Integers, start: int, stop: int) -> tuple[Codes, Half, Half]:
        row, each = part.rows[0] if part.rows else 0, self.shape[1] // self.group
        first, last = (row + start) * each, (row + stop) * each
        codes = self._codes(first, last) + np.uint8(stands_for_zero(fmt) - self.middle)
        by_group = ((values * np.float32(part.times)).astype(np.float16) for values in self._steps(first, last))
        scales, offsets = (np.repeat(values, self.group // _BLOCK).reshape(stop - start, -1) for values in by_group)
        return packed(codes.reshape(*scales.shape, _BLOCK), fmt), scales, offsets

    def floats(self, start: int, stop: int) -> Array:
        (_, k), width = self.shape, self.data.shape[1]
        first, last = start * k // width, -(-stop * k // width)
        values = self._codes(first, last).astype(np.float32)
        scale, zero = self._factors(first, last)
        values -= zero
        values *= scale
        return values.reshape(-1)[start * k - first * width :][: (stop - start) * k].reshape(-1, k)

    def _codes(self, start: int, stop: int) -> Codes:
        """Rows start to stop-1, of those that are packed: a packed row holds some that are far apart."""
        count, found, at = self.data.shape[0], list[Codes](), start
        codes = _CODES[self.bits]
        while at < stop:
            place, first = divmod(at, count)
            last = min(count, first + stop - at)
            words = integers(f"{self.module}{_DATA}", self.data, first, last)
            shifted = words >> words.dtype.type(self.bits * (codes - 1 - place))
            found.append((shifted & words.dtype.type((1 << self.bits) - 1)).astype(np.uint8))
            at += last - first
        return np.concatenate(found)

    def _factors(self, start: int, stop: int) -> tuple[Array, Array]:
        """Scales and zero points of these rows: [n, 1], or [1, groups] by axis 0."""
        span = (start, stop) if self.axis else (0, 1)
        return floats(f"{self.module}.scale", self.scale, *span), floats(f"{self.module}.zero", self.zero, *span)
