"""The native engine's cache: a thin handle. The library owns pages and slots."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from ctypes import addressof, c_char
from typing import Any, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from edgedec.cache.base import Arrays, Bytes, Ints, Weights, checked_drop, slotted
from edgedec.cache.merging import checked_merge
from edgedec.errors import ContextFull, SessionError, UsageError
from edgedec.kernels import cpu
from edgedec.kernels.cpu import codes
from edgedec.spec import ModelSpec


def address(array: NDArray[Any]) -> int:
    """The address of an array's values."""
    try:
        return addressof(c_char.from_buffer(cast(Any, array)))  # a fifth of the time of __array_interface__
    except (TypeError, ValueError):  # read-only, empty, or with gaps
        return int(array.__array_interface__["data"][0])


def raise_refusal(code: int) -> NoReturn:
    """Raise the error for a status code of the library."""
    if code == codes.MEMORY:
        raise MemoryError(codes.ERRORS[code])
    if code == codes.FULL:
        raise ContextFull(codes.ERRORS[codes.FULL])
    raise UsageError(f"engine native refuses the call: {codes.ERRORS[code]}")


class NativeCache:
    """`edgedec.cache.Cache`, in pages that forks share."""

    def __init__(self, spec: ModelSpec, handle: cpu.CacheHandle, capacity: int, kv: str) -> None:
        self.spec, self.handle, self.capacity, self.kv = spec, handle, capacity, kv
        self.kind = f"native-{kv}"
        self.length = handle.length

    def slots(self, block: int) -> int:
        return self.handle.slots(block)

    def positions(self, block: int) -> Ints:
        out = np.empty(self.slots(block), np.int64)
        self.handle.positions(block, address(out))
        return out

    def commit(self, rows: Sequence[int]) -> None:
        if code := self.handle.commit(rows):
            raise_refusal(code)
        self.length += len(rows)

    def attach(self, rows: int) -> None:
        if code := self.handle.attach(rows):
            raise_refusal(code)

    def rollback(self) -> None:
        self.handle.rollback()
        if self.handle.address:
            self.length = self.handle.length  # a step that was interrupted may have committed a row

    def truncate(self, length: int) -> None:
        if not 0 <= length <= self.length:
            raise UsageError(f"cannot truncate {self.length} cached tokens to {length}")
        self.length = self.handle.truncate(length)

    def fork(self, length: int | None = None, capacity: int | None = None) -> NativeCache:
        length = self.length if length is None else length
        capacity = self.capacity if capacity is None else capacity
        if not 0 <= length <= self.length:
            raise UsageError(f"cannot fork {length} of {self.length} cached tokens")
        if length > capacity:
            raise ContextFull(f"{length} tokens do not fit a cache of {capacity}")
        return NativeCache(self.spec, self.handle.fork(length, capacity), capacity, self.kv)

    def keys(self, block: int, start: int = 0) -> NDArray[np.float32]:
        facts = self.spec.attention[slotted(self.spec, block, "read")]
        out = np.empty((facts.n_kv_heads, max(0, self.slots(block) - start), facts.head_dim), np.float32)
        self.handle.keys(block, start, address(out))
        return out

    def offload(self, block: int, pages: Sequence[int] | Ints, folder: str) -> None:
        slotted(self.spec, block, "put on disk")
        numbers = np.asarray(pages, np.int32)
        code = self.handle.offload(block, address(numbers), len(numbers), os.fsencode(folder))
        if code == codes.NO_FILE:
            raise UsageError(f"{folder}: {codes.ERRORS[code]}")
        if code:
            raise_refusal(code)

    def merge(self, block: int, into: Sequence[int], slots: Sequence[int], weights: Weights) -> None:
        facts = self.spec.attention[slotted(self.spec, block, "merged")]
        target, source, shares = checked_merge(into, slots, weights, facts.n_kv_heads, self.slots(block))
        n = len(source)
        if code := self.handle.merge(block, address(target), address(source), address(shares), n):
            raise_refusal(code)

    def drop_by_head(self, block: int, slots: Ints) -> None:
        gone = checked_drop(self.spec, block, slots)
        if code := self.handle.drop_by_head(block, address(gone), gone.shape[1]):
            raise_refusal(code)

    def drop(self, block: int, slots: Sequence[int] | Ints) -> None:
        slotted(self.spec, block, "dropped")
        gone = np.unique(np.asarray(slots, np.int64))
        if code := self.handle.drop(block, address(gone), len(gone)):
            raise_refusal(code)

    def save(self) -> Arrays:
        out = np.empty(self.handle.save_bytes, np.uint8)
        self.handle.save(address(out))
        return {"length": np.array([self.length], np.int64), "state": out}

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        state, length = arrays.get("state"), arrays.get("length")
        if len(arrays) != 2 or state is None or length is None or state.dtype != np.uint8 or state.ndim != 1:
            raise SessionError(f"cached values are not of a {self.kind} cache of this model")
        data, handle = np.ascontiguousarray(state), self.handle.fork(0, self.capacity)
        code = handle.load(address(data), data.nbytes)
        if code == codes.MEMORY:
            raise MemoryError(codes.ERRORS[code])
        if code or length.dtype != np.int64 or length.tolist() != [handle.length]:
            raise SessionError(f"cached values are not of a {self.kind} cache of this model")
        self.handle, self.length = handle, handle.length

    def save_rest(self, start: int) -> Bytes | None:
        """As `GrowingCache`."""
        size = self.handle.rest_bytes(start)
        out = np.empty(size, np.uint8)
        if size:
            self.handle.save_rest(start, address(out))
        return out if size else None

    def append(self, rest: Bytes) -> bool:
        """As `GrowingCache`."""
        code = self.handle.append(address(rest), rest.nbytes)
        self.length = self.handle.length
        if code == codes.MEMORY:
            raise MemoryError(codes.ERRORS[code])
        return code == 0

    def page_ids(self) -> Ints:
        out = np.empty(self.handle.page_ids(None), np.int64)
        self.handle.page_ids(address(out))
        return out

    @property
    def nbytes(self) -> int:
        return self.handle.nbytes
