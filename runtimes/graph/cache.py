"""A cache of a graph's output keys and values: whole arrays, never written in place.

Forks therefore share the arrays, and truncation only stores a smaller length: the arrays are cut at the next call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from edgedec.cache.base import Arrays, Ints
from edgedec.cache.merging import NoMerging
from edgedec.cache.pending import PendingTree
from edgedec.errors import SessionError, UsageError
from edgedec.runtime import Rows
from edgedec.spec import ModelSpec, Opaque

DTYPES: dict[str, Any] = {"f32": np.float32, "f16": np.float16}


class GraphCache(NoMerging):
    """Room for `capacity` tokens, of which the first `length` are committed.

    `_values`: keys and values of each layer in turn, [1, n_kv_heads, slots, head_dim], of the committed slots and of
    the pending rows after them; `_base`: the slot of row 0 of the pending tree.
    """

    def __init__(self, spec: ModelSpec, capacity: int, kv: str = "f32") -> None:
        if capacity < 1:
            raise UsageError(f"capacity {capacity}: a cache needs room for at least one token")
        self.spec, self.capacity, self.kv, self.kind = spec, capacity, kv, f"graph {kv}"
        self._length = self._base = 0
        self._tree = PendingTree()
        self._values = [self._wrap(np.zeros((1, n, 0, dim), DTYPES[kv])) for n, dim in self._shapes()]

    @property
    def length(self) -> int:
        return self._length

    @property
    def nbytes(self) -> int:
        return sum(value.numpy().nbytes for value in self._values)

    def slots(self, block: int) -> int:
        return self._length

    def positions(self, block: int) -> Ints:
        return np.arange(self._length)

    def page_ids(self) -> Ints:
        return np.zeros(0, np.int64)

    def begin(self, rows: Rows) -> int:
        """The slot of the first computed row of a call; UsageError if the rows before it are not pending."""
        base = self._base if rows.first else self._length
        if rows.first and (self._tree.done or rows.first > self._tree.size):
            raise UsageError(f"rows from {rows.first} on cannot be added to {self._tree.size} pending ones")
        return base + rows.first

    def held(self, slots: int) -> list[Any]:
        """Keys and values of the first `slots` slots."""
        if self._values[0].shape()[2] != slots:
            self._values = [self._wrap(value.numpy()[:, :, :slots]) for value in self._values]
        return self._values

    def write(self, rows: Rows, values: list[Any]) -> None:
        """Store a call's output: all slots up to its last row."""
        if self._tree.write(rows):
            self._base = self._length
        if rows.first == 0:
            self._base = self._length
        self._values = values

    def commit(self, rows: Sequence[int]) -> None:
        self._tree.commit(rows)
        taken = [self._base + row for row in rows]
        if taken and taken != list(range(self._length, self._length + len(taken))):
            self._pack(taken)
        self._length += len(taken)

    def rollback(self) -> None:
        self._tree.reset()
        self._base = self._length

    def truncate(self, length: int) -> None:
        if not 0 <= length <= self._length:
            raise UsageError(f"cannot truncate {self._length} cached tokens to {length}")
        self._length = length
        self.rollback()

    def fork(self, length: int | None = None, capacity: int | None = None) -> GraphCache:
        length = self._length if length is None else length
        twin = GraphCache(self.spec, self.capacity if capacity is None else capacity, self.kv)
        if twin.capacity < min(length, self._length):
            raise UsageError(f"capacity {twin.capacity}: the fork has {length} tokens")
        twin._values, twin._length = self._values, self._length
        twin.truncate(length)
        return twin

    def drop(self, block: int, slots: Sequence[int] | Ints) -> None:
        raise UsageError("this runtime declares no drop: slots of a graph's cache cannot be forgotten")

    def save(self) -> Arrays:
        arrays: Arrays = {"length": np.array([self._length], np.int64)}
        for b in range(self.spec.n_blocks):
            pair = self._values[2 * b : 2 * b + 2]
            arrays[f"kv.{b}"] = np.concatenate([value.numpy()[:, :, : self._length] for value in pair])
        return arrays

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        held = arrays.get("length", np.zeros(0))
        length = int(held[0]) if held.shape == (1,) and held.dtype == np.int64 else -1
        shapes = {f"kv.{b}": (2, n, length, dim) for b, (n, dim) in enumerate(self._shapes()[::2])}
        fits = arrays.keys() == {"length", *shapes} and 0 <= length <= self.capacity
        if not fits or any((arrays[b].shape, arrays[b].dtype) != (s, DTYPES[self.kv]) for b, s in shapes.items()):
            raise SessionError(f"cached values are not of a {self.kind} cache of this model")
        parts = [arrays[name][part : part + 1] for name in shapes for part in (0, 1)]
        self._values = [self._wrap(part.copy()) for part in parts]
        self._length = length
        self.rollback()

    def _pack(self, taken: list[int]) -> None:
        """Move the slots of these rows to the end of the committed ones, and those of later rows after them."""
        end = taken[-1] + 1
        order = [*range(self._length), *taken, *range(end, self._values[0].shape()[2])]
        self._values = [self._wrap(value.numpy()[:, :, order]) for value in self._values]
        self._base -= end - self._length - len(taken)

    def _shapes(self) -> list[tuple[int, int]]:
        """(heads, head_dim) of the keys and of the values of each layer."""
        return [(b.n_kv_heads, b.head_dim) for b in self.spec.blocks if isinstance(b, Opaque) for _ in "kv"]

    def _wrap(self, array: NDArray[Any]) -> Any:
        return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))
