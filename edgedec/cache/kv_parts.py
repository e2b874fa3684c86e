"""A saved cache in parts: the keys and values by block, and the rest, in one form for all engines."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.cache.base import Arrays
from edgedec.cache.kv_code import Field
from edgedec.cache.memory import NARROW, row_bytes, scale_bytes
from edgedec.spec import ModelSpec

Rows = NDArray[np.uint8]
# The native engine's headers before the blocks (kernels/cpu/cache.cpp), and before the rows of a block.
_HEADER, _SLOTS = 32, struct.Struct("<qq")
_NATIVE = "native-"
_SIZES = {"f32": 4, "f16": 2, "int8": 1, "int4": 1}
_DTYPES: dict[str, type[np.generic]] = {"f32": np.float32, "f16": np.float16, "int8": np.int8, "int4": np.uint8}


@dataclass(frozen=True)
class KVParts:
    """rows: uint8 [kv_parts, kv heads, tokens, row bytes] of each attention block, empty if some block holds another
    text than the others; rest: all else, by the names it was saved under."""

    kind: str
    rows: dict[int, Rows]
    rest: Arrays

    @staticmethod
    def takes(spec: ModelSpec, kind: str) -> bool:
        """Whether caches of this kind can be split."""
        native = kind.startswith(_NATIVE) and not spec.recurrent
        return bool(spec.attention) and (native or kind in _SIZES) and kind.removeprefix(_NATIVE) in _SIZES

    @classmethod
    def split(cls, spec: ModelSpec, kind: str, arrays: Mapping[str, NDArray[Any]]) -> KVParts:
        """The parts of the arrays that `Cache.save` returned."""
        whole = cls(kind, {}, dict(arrays))
        if not cls.takes(spec, kind) or not arrays["length"][0]:
            return whole
        split = _split_native if kind.startswith(_NATIVE) else _split_plain
        return split(spec, kind, arrays) or whole

    def joined(self) -> Arrays:
        """The arrays as `Cache.save` returned them."""
        if not self.rows:
            return dict(self.rest)
        if self.kind.startswith(_NATIVE):
            parts = [self.rest["header"]]
            for rows in self.rows.values():
                parts += [np.frombuffer(_SLOTS.pack(rows.shape[2], 0), np.uint8), rows.reshape(-1)]
            return {"length": self.rest["length"], "state": np.concatenate(parts)}
        slots = np.stack([np.arange(self.length)] * 2)
        found = dict(self.rest) | {f"slots.{b}": slots for b in self.rows}
        return found | {f"kv.{b}": rows.view(_DTYPES[self.kind]) for b, rows in self.rows.items()}

    @property
    def length(self) -> int:
        """Tokens that every block holds."""
        return next((rows.shape[2] for rows in self.rows.values()), 0)


def fields(spec: ModelSpec, kind: str, b: int) -> tuple[Field, ...]:
    """The fields of a row of attention block b."""
    dim, kv = spec.attention[b].head_dim, kind.removeprefix(_NATIVE)
    if not kind.startswith(_NATIVE) or kv in ("f32", "f16"):
        width = dim // 2 if kv == "int4" else dim * _SIZES[kv]
        if kind.startswith(_NATIVE):
            width = row_bytes(dim, kv)
        return (Field(0, width, _SIZES[kv], kv in ("f32", "f16")),)
    width = row_bytes(dim, kv)
    if kv == "int8" or dim <= NARROW:
        return Field(0, width - 4, 1, False), Field(width - 4, width, 4, True)
    scales = width - scale_bytes(dim)
    return Field(0, scales, 1, False), Field(scales, width, 2, True)


def empty(spec: ModelSpec, kind: str, tokens: int) -> dict[int, Rows]:
    """Rows of every attention block, to be filled."""
    return {
        b: np.zeros((block.kv_parts, block.n_kv_heads, tokens, fields(spec, kind, b)[-1].stop), np.uint8)
        for b, block in spec.attention.items()
    }


def _split_native(spec: ModelSpec, kind: str, arrays: Mapping[str, NDArray[Any]]) -> KVParts | None:
    state, at, found = arrays["state"], _HEADER, dict[int, Rows]()
    length = int(arrays["length"][0])
    for b, block in spec.attention.items():
        if len(state) < at + _SLOTS.size:
            return None
        slots, named = _SLOTS.unpack(state[at : at + _SLOTS.size].tobytes())
        shape = (block.kv_parts, block.n_kv_heads, slots, fields(spec, kind, b)[-1].stop)
        size = int(np.prod(shape))
        if named or slots != length or len(state) < at + _SLOTS.size + size:
            return None
        at += _SLOTS.size
        found[b] = state[at : at + size].reshape(shape)
        at += size
    if at != len(state):
        return None
    return KVParts(kind, found, {"length": arrays["length"], "header": state[:_HEADER]})


def _split_plain(spec: ModelSpec, kind: str, arrays: Mapping[str, NDArray[Any]]) -> KVParts | None:
    length = int(arrays["length"][0])
    for b in spec.attention:
        slots = arrays[f"slots.{b}"]
        if slots.shape[1] != length or (slots != np.arange(length)).any():
            return None
    rest = {name: array for name, array in arrays.items() if not name.startswith(("kv.", "slots."))}
    rows = {b: np.ascontiguousarray(arrays[f"kv.{b}"]).view(np.uint8) for b in spec.attention}
    return KVParts(kind, rows, rest)
