"""Named arrays in a memory-mapped file: for data that a program offloads and loads again. No pickle.

8 bytes   b"EDGEMAPS"
8 bytes   length of the header; 4 bytes its CRC-32, 4 bytes that of the arrays, little endian
header    JSON: [name, dtype, shape] of each array
arrays    each from a multiple of 64 bytes on, C order
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import SessionError
from edgedec.storage.arrays import SavedArray
from edgedec.storage.files import replacing
from edgedec.storage.serde import from_json, to_json

_MAGIC, _ALIGN = b"EDGEMAPS", 64
_HEAD = struct.Struct("<8sQII")
_LARGEST = 1 << 40


def write_mapped(path: Path, arrays: Mapping[str, NDArray[Any]]) -> int:
    """Write a file, whole or not at all: its bytes."""
    listed = [SavedArray(name, a.dtype.name, a.shape) for name, a in arrays.items()]  # type: ignore[arg-type]
    header, crc, at = json.dumps([to_json(item) for item in listed]).encode(), 0, 0
    with replacing(path) as file:
        at = file.write(bytes(_HEAD.size)) + file.write(header)
        for array in arrays.values():
            at += file.write(bytes(-at % _ALIGN))
            raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            at, crc = at + file.write(raw), zlib.crc32(raw, crc)
        file.seek(0)
        file.write(_HEAD.pack(_MAGIC, len(header), zlib.crc32(header), crc))
    return at


def map_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a file, read-only, as long as it is there; SessionError for one that is damaged or no such file."""
    try:
        raw = np.memmap(path, np.uint8, mode="r").view(np.ndarray)
    except (OSError, ValueError) as error:  # an empty file cannot be mapped
        raise SessionError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if len(raw) < _HEAD.size:
        raise SessionError(f"{path}: cut short")
    magic, size, header_crc, crc = _HEAD.unpack(raw[: _HEAD.size].tobytes())
    header = raw[_HEAD.size : _HEAD.size + size].tobytes() if size <= len(raw) else b""
    if magic != _MAGIC or len(header) != size or zlib.crc32(header) != header_crc:
        raise SessionError(f"{path}: damaged header")
    found, at, seen = dict[str, NDArray[Any]](), _HEAD.size + size, 0
    for item in json.loads(header):
        array = from_json(SavedArray, item, "array")
        at += -at % _ALIGN
        length = prod(array.shape) * np.dtype(array.dtype).itemsize
        if not 0 <= length <= _LARGEST or at + length > len(raw):
            raise SessionError(f"{path}: cut short")
        part, at = raw[at : at + length], at + length
        seen = zlib.crc32(part.data, seen) if length else seen
        found[array.name] = part.view(array.dtype).reshape(array.shape)
    if seen != crc or at != len(raw):
        raise SessionError(f"{path}: damaged (its checksum differs)")
    return found
