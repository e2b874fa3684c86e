"""safetensors files: where each tensor lies, checked byte for byte, and plain reads of a part of one.

A file is: the length of the header (8 bytes, little endian), the header (JSON), the data.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.errors import BadTensor, CheckpointError

Array = npt.NDArray[np.float32]

MAX_JSON = 100_000_000
MAX_SIZE = 1 << 48
READABLE: dict[str, npt.DTypeLike] = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
# fmt: off
ITEM_BYTES = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1,
}
# fmt: on


@dataclass(frozen=True)
class Stored:
    """A tensor as it lies in a file: `size` bytes from `offset` on, row by row."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int

    def require_readable(self, name: str) -> None:
        require_readable(name, self)

    def values(self, name: str, first: int, shape: tuple[int, ...]) -> Array:
        """Rows from `first` on: float32 of `shape`."""
        width = math.prod(shape[1:])
        return elements(name, self, first * width, math.prod(shape)).reshape(shape)


def read_optional(path: Path) -> dict[str, Any]:
    """A JSON object; an empty one if there is no such file."""
    return read_json(path) if path.is_file() else {}


def read_json_list(path: Path) -> list[dict[str, Any]]:
    """A JSON list of objects."""
    try:
        found = json.loads(path.read_bytes()[:MAX_JSON])
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: not JSON ({error})") from None
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise CheckpointError(f"{path}: expected a list of objects")
    return found


def read_header(path: Path) -> dict[str, Stored]:
    """The tensors of one safetensors file, once its header accounts for every byte of it."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(MAX_JSON, size - 8):
                raise CheckpointError(f"{path}: truncated, or not a safetensors file")
            header = _parse(file.read(length), path)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from None
    header.pop("__metadata__", None)  # free text about the file
    found = {name: _stored(path, name, entry, 8 + length) for name, entry in header.items()}
    end = 8 + length
    for name, stored in sorted(found.items(), key=lambda item: (item[1].offset, item[1].size)):
        if stored.offset != end:
            raise BadTensor(f"{name}: in {path.name}, overlaps its neighbour or leaves a hole before it")
        end += stored.size
    if end != size:
        raise CheckpointError(f"{path}: {size} bytes long, its header describes {end}; download it again")
    return found


def _stored(path: Path, name: str, entry: Any, base: int) -> Stored:
    """One entry of a header: {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}"""
    where = f"{name}: in {path.name}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise BadTensor(f"{where}, expected dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise BadTensor(f"{where}, dtype {dtype!r:.40} is not known")
    if not _sizes(shape) or not _sizes(offsets) or len(offsets) != 2 or len(shape) > 8:
        raise BadTensor(f"{where}, shape or data_offsets is not a list of sizes")
    if math.prod(max(1, d) for d in shape) >= MAX_SIZE:
        raise BadTensor(f"{where}, shape {shape} is out of range")
    size = math.prod(shape) * ITEM_BYTES[dtype]
    if offsets[1] - offsets[0] != size:
        raise BadTensor(f"{where}, {dtype} {shape} takes {size} bytes, data_offsets give {offsets}")
    return Stored(path, dtype, tuple(shape), base + offsets[0], size)


def _sizes(found: Any) -> bool:
    return isinstance(found, list) and all(type(item) is int and 0 <= item < MAX_SIZE for item in found)


def require_readable(name: str, stored: Stored) -> None:
    if stored.dtype not in READABLE:
        raise BadTensor(f"{name}: {stored.dtype} is not supported; save it as one of {', '.join(READABLE)}")


def elements(name: str, stored: Stored, first: int, count: int) -> Array:
    """`count` elements of a tensor from element `first` on: float32 [count]."""
    require_readable(name, stored)
    dtype = np.dtype(READABLE[stored.dtype])
    with stored.file.open("rb") as file:
        file.seek(stored.offset + first * dtype.itemsize)
        raw: npt.NDArray[Any] = np.fromfile(file, dtype, count)
    if len(raw) != count:
        raise BadTensor(f"{name}: {stored.file} is shorter than its header says")
    if stored.dtype == "BF16":
        return (raw.astype(np.uint32) << 16).view(np.float32)
    return raw.astype(np.float32, copy=False)


def read_json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_JSON:
            raise CheckpointError(f"{path}: too large for a JSON file of a checkpoint")
        return _parse(path.read_bytes(), path)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from None


def _parse(text: bytes, path: Path) -> dict[str, Any]:
    try:
        found = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: expected a JSON object")
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key occurs twice")
    return found
