"""Named arrays in one file, checked by hash: the format of saved sessions and adapters. No pickle.

8 bytes   what kind of file it is
32 bytes  sha256 of all that follows
8 bytes   length of the header, little endian
header    JSON: {"arrays": [name, dtype, shape of each], "header": what the kind of file says of itself}
rest      the arrays, one after another, C order
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleCorrupt, EdgedecError
from edgedec.storage.files import replacing
from edgedec.storage.serde import from_json, to_json

_HEADER_LIMIT = 64 << 20
_LARGEST, _MAX_DIMS = 1 << 32, 8
_MAGIC, _PREFIX = 8, 8 + 32 + 8


@dataclass(frozen=True)
class SavedArray:
    """One of the arrays after the header."""

    name: str
    dtype: Literal["int8", "int32", "int64", "float16", "float32", "float64", "uint8"]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class _Contents:
    arrays: tuple[SavedArray, ...]
    header: dict[str, Any]


class ArrayFile(NamedTuple):
    """The content of such a file; digest: its hash."""

    header: dict[str, Any]
    arrays: dict[str, NDArray[Any]]
    digest: str


def write_arrays(
    path: str | os.PathLike[str],
    magic: bytes,
    header: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
    error: type[EdgedecError],
) -> None:
    """Write a file of the kind `magic`, whole or not at all."""
    listed = tuple(SavedArray(name, a.dtype.name, a.shape) for name, a in arrays.items())  # type: ignore[arg-type]
    text = json.dumps(to_json(_Contents(listed, dict(header)))).encode()
    parts = [len(text).to_bytes(8, "little"), text, *(np.ascontiguousarray(a).tobytes() for a in arrays.values())]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    try:
        with replacing(Path(path)) as file:
            file.writelines([magic, digest.digest(), *parts])
    except OSError as wrong:
        raise error(f"{path}: cannot be written: {wrong.strerror or wrong}") from None


def read_arrays(path: str | os.PathLike[str], magic: bytes, what: str, error: type[EdgedecError]) -> ArrayFile:
    """The content of a file of the kind `magic`; what: its name in messages; `error` is raised for other or damaged
    files."""
    try:
        with Path(path).open("rb") as file:
            raw = file.read(_PREFIX)
            if raw[:_MAGIC] == magic:  # another file may be of any size
                raw += file.read()
    except OSError as wrong:
        raise error(f"{path}: {wrong.strerror or wrong}") from None
    size = int.from_bytes(raw[_PREFIX - 8 : _PREFIX], "little")
    if raw[:_MAGIC] != magic or size > min(_HEADER_LIMIT, len(raw) - _PREFIX):
        raise error(f"{path}: not {what}, or cut short")
    digest = hashlib.sha256(memoryview(raw)[_PREFIX - 8 :])
    if digest.digest() != raw[_MAGIC : _PREFIX - 8]:
        raise error(f"{path}: damaged (its hash differs)")
    try:
        contents = from_json(_Contents, json.loads(raw[_PREFIX : _PREFIX + size]), what)
    except (ValueError, RecursionError, BundleCorrupt) as wrong:
        raise error(f"{path}: damaged header ({wrong})") from None
    payload, at, found = memoryview(raw)[_PREFIX + size :], 0, dict[str, NDArray[Any]]()
    for array in contents.arrays:
        if not all(0 <= size <= _LARGEST for size in array.shape) or len(array.shape) > _MAX_DIMS:
            raise error(f"{path}: damaged header (an array of shape {array.shape})")
        length = prod(array.shape) * np.dtype(array.dtype).itemsize
        part, at = payload[at : at + length], at + length
        if len(part) == length:
            found[array.name] = _shaped(path, part, array, error)
    if len(payload) != at:
        raise error(f"{path}: what is in it has another size than its header says")
    return ArrayFile(contents.header, found, digest.hexdigest())


def _shaped(path: object, part: memoryview, array: SavedArray, error: type[EdgedecError]) -> NDArray[Any]:
    try:
        return np.frombuffer(part, array.dtype).reshape(array.shape)
    except ValueError:  # of no elements, and too many dimensions' worth of none
        raise error(f"{path}: damaged header (an array of shape {array.shape})") from None
