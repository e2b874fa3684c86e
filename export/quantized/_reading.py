"""Plain reads of integer tensors, and integers that share a word."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.errors import BadTensor
from edgedec.export.safetensors import Array, Stored, elements

Words = npt.NDArray[np.uint32]
Codes = npt.NDArray[np.uint8]
_DTYPES = {"I32": "<u4", "I64": "<i8", "U8": "u1", "I8": "i1", "F8_E4M3": "u1", "BOOL": "u1"}


def tensor(tensors: Mapping[str, Stored], name: str, dtypes: str, dims: int) -> Stored:
    """The tensor `name`, once it is there with one of the dtypes (by spaces) and so many axes."""
    stored = tensors.get(name)
    if stored is None:
        raise BadTensor(f"{name}: missing from the checkpoint")
    if stored.dtype not in dtypes.split() or len(stored.shape) != dims:
        wanted = f"{' or '.join(dtypes.split())} of {dims} axes"
        raise BadTensor(f"{name}: is {stored.dtype} {list(stored.shape)}, expected {wanted}")
    return stored


def require_shape(name: str, stored: Stored, *shapes: tuple[int, ...]) -> None:
    """BadTensor unless the tensor has one of the shapes."""
    if stored.shape not in shapes:
        wanted = " or ".join(str(list(shape)) for shape in dict.fromkeys(shapes))
        raise BadTensor(f"{name}: has shape {list(stored.shape)}, expected {wanted}")


def integers(name: str, stored: Stored, start: int = 0, stop: int | None = None) -> npt.NDArray[Any]:
    """Rows start to stop-1 [n, ...] of a tensor of integers or bytes (of int32 as uint32)."""
    stop = stored.shape[0] if stop is None else stop
    width = prod(stored.shape[1:])
    return _read(name, stored, start * width, (stop - start) * width).reshape(stop - start, *stored.shape[1:])


def columns(name: str, stored: Stored, start: int, stop: int) -> npt.NDArray[Any]:
    """Columns start to stop-1 [rows, n] of a matrix of integers; nothing else is read."""
    rows, width = stored.shape
    if (start, stop) == (0, width):
        return integers(name, stored)
    dtype = np.dtype(_DTYPES[stored.dtype])
    found = np.empty((rows, stop - start), dtype)
    with stored.file.open("rb", buffering=0) as file:
        for row in range(rows):
            file.seek(stored.offset + (row * width + start) * dtype.itemsize)
            if file.readinto(found[row].data) != found[row].nbytes:
                raise BadTensor(f"{name}: {stored.file} is shorter than its header says")
    return found


def floats(name: str, stored: Stored, start: int = 0, stop: int | None = None) -> Array:
    """Rows start to stop-1 [n, ...] of a tensor of floats."""
    stop = stored.shape[0] if stop is None else stop
    width = prod(stored.shape[1:])
    return elements(name, stored, start * width, (stop - start) * width).reshape(stop - start, *stored.shape[1:])


def unpacked(words: Words, bits: int) -> Codes:
    """uint32 [..., w] -> uint8 [..., w * 32 / bits]: integers of 2, 3, 4 or 8 bits one after another, the lowest bits
    first; of 3 bits, 32 lie in three words.

    >>> unpacked(np.array([0x76543210], np.uint32), 4).tolist()
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    data = np.ascontiguousarray(words, "<u4").view(np.uint8)
    if bits == 8:
        return data
    if bits == 3:
        three = data.reshape(*data.shape[:-1], -1, 3).astype(np.uint32)
        joined = three[..., 0] | three[..., 1] << 8 | three[..., 2] << 16
        codes: Codes = (joined[..., None] >> np.arange(0, 24, 3, dtype=np.uint32) & 7).astype(np.uint8)
    else:
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        codes = data[..., None] >> shifts & np.uint8((1 << bits) - 1)
    return codes.reshape(*data.shape[:-1], -1)


def _read(name: str, stored: Stored, first: int, count: int) -> npt.NDArray[Any]:
    dtype = np.dtype(_DTYPES[stored.dtype])
    with stored.file.open("rb") as file:
        file.seek(stored.offset + first * dtype.itemsize)
        raw: npt.NDArray[Any] = np.fromfile(file, dtype, count)
    if len(raw) != count:
        raise BadTensor(f"{name}: {stored.file} is shorter than its header says")
    return raw
