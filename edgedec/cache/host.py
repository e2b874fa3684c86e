"""One sequence's keys and values, for every runtime.

`data` is one array [n_layers, 2, n_kv_heads, allocated, width]: keys and values of a layer are
plain views of it, so that a runtime writes in place and `keep` moves all layers at once. It grows
by doubling up to `capacity`; `f32` and `f16` hold numbers, `int8` and `int4` hold q with a static
scale per channel (value = q * scale; int4: two channels a byte, low nibble first, stored q + 8),
unless a runtime lays out its rows in its own way.

The first rows may be another text's as well: `adopt` takes them in one copy for both where the runtime can read rows
from two places (`shares`), the first `n_shared` in `shared` and the rest in `data`. Shared rows are never written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import ContextFull, SessionError, UsageError
from edgedec.spec import KV_FORMATS, ModelSpec

_DTYPES: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "int8": np.int8, "int4": np.uint8}
_FIRST = 256


def kv_bytes_per_token(spec: ModelSpec, kv: str) -> int:
    """What one token costs in a cache of this format."""
    bits = {"f32": 32, "f16": 16, "int8": 8, "int4": 4}[kv]
    return spec.n_layers * 2 * spec.kv_dim * bits // 8


class Cache:
    """Room for `capacity` rows, of which the first `length` are committed."""

    def __init__(
        self,
        spec: ModelSpec,
        capacity: int,
        kv: str = "f32",
        row: tuple[Any, int] | None = None,
        kind: str = "",
        shares: bool = False,
    ) -> None:
        """`row`: type and width of a head's row, if not those above; `kind` is then the name of that layout.
        `shares`: may its first rows lie elsewhere?"""
        if kv not in KV_FORMATS:
            raise UsageError(f"no KV format {kv!r}; there are: {', '.join(KV_FORMATS)}")
        if capacity < 1:
            raise UsageError(f"capacity {capacity}: a cache needs room for at least one row")
        self.spec, self.capacity, self.kv, self.kind, self.shares = spec, capacity, kv, kind or kv, shares
        self._row = row or (_DTYPES[kv], spec.head_dim // 2 if kv == "int4" else spec.head_dim)
        self.length = self.n_shared = 0
        self.data = self._allocate(min(_FIRST, capacity))
        self.shared: NDArray[Any] | None = None

    def _allocate(self, rows: int) -> NDArray[Any]:
        dtype, width = self._row
        return np.zeros((self.spec.n_layers, 2, self.spec.n_kv_heads, rows, width), dtype)

    @property
    def allocated(self) -> int:
        """Rows that `data` has room for: its first is row `n_shared` of the text."""
        return int(self.data.shape[3])

    def reserve(self, rows: int) -> None:
        """Make sure that `rows` rows fit behind the committed ones; ContextFull if they never can."""
        need = self.length + rows
        if need > self.capacity:
            raise ContextFull(f"{need} rows do not fit a cache of {self.capacity}")
        if need - self.n_shared > self.allocated:
            most = self.capacity - self.n_shared
            grown = self._allocate(min(most, max(need - self.n_shared, 2 * self.allocated)))
            # Rows behind `length` move too: a growing tree has them pending.
            grown[:, :, :, : self.allocated] = self.data
            self.data = grown

    def keys(self, layer: int) -> NDArray[Any]:
        """[n_kv_heads, allocated, width], writable."""
        return self.data[layer, 0]

    def values(self, layer: int) -> NDArray[Any]:
        """[n_kv_heads, allocated, width], writable."""
        return self.data[layer, 1]

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        if not 0 <= length <= self.length:
            raise UsageError(f"cannot truncate {self.length} cached tokens to {length}")
        self.length = length
        self.n_shared = min(self.n_shared, length)
        if not self.n_shared:
            self.shared = None

    def keep(self, rows: Sequence[int]) -> None:
        """Commit these rows of the last call (ascending row numbers of its tree), drop the others.

        Worked example: length 3, a call wrote rows 0..3 to slots 3..6; keep([0, 2, 3]) moves
        slots 5, 6 to 4, 5 and sets length 6.
        """
        if all(i == row for i, row in enumerate(rows)):
            self.length += len(rows)
            return
        own = self.length - self.n_shared
        source = np.asarray(rows, np.int64) + own
        target = np.arange(own, own + len(source))
        moved = source != target
        if moved.any():
            self.data[:, :, :, target[moved]] = self.data[:, :, :, source[moved]]
        self.length += len(source)

    def adopt(self, other: Cache, n: int) -> None:
        """Begin with the first `n` committed tokens of `other`, in one copy for both if that can be. What is here
        behind `n` stays: then the texts agree so far. For one thread, as `other` may have to move what it lends.
        """
        rest = self.rows(n, self.length).copy() if self.length > n else None
        self.truncate(0)
        if self.shares and n:
            other._lend(n)
            self.shared, self.length, self.n_shared = other.shared, n, n
        else:
            self.append(other.rows(0, n))
        if rest is not None:
            self.append(rest)

    def _lend(self, n: int) -> None:
        """Put the first `n` rows where others can read them too."""
        if n > self.n_shared:
            shared = np.ascontiguousarray(self.rows(0, n))
            # What lies behind `length` may be pending.
            self.data = np.ascontiguousarray(self.data[:, :, :, n - self.n_shared :])
            self.shared, self.n_shared = shared, n

    def fork(self) -> Cache:
        """Another cache with the committed tokens; what happens to one is not noticed by the other."""
        twin = Cache(self.spec, self.capacity, self.kv, self._row, self.kind, self.shares)
        twin.adopt(self, self.length)
        return twin

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        """Keys and values of committed tokens [n_layers, 2, n_kv_heads, stop - start, width]; perhaps a view."""
        own = self.data[:, :, :, max(start - self.n_shared, 0) : max(stop - self.n_shared, 0)]
        if self.shared is None or start >= self.n_shared:
            return own
        return np.concatenate([self.shared[:, :, :, start : min(stop, self.n_shared)], own], axis=3)

    def append(self, data: NDArray[Any]) -> None:
        """Commit rows that `rows` returned."""
        self.reserve(n := self._count(data))
        own = self.length - self.n_shared
        self.data[:, :, :, own : own + n] = data
        self.length += n

    def save(self) -> NDArray[Any]:
        """The committed tokens' keys and values [n_layers, 2, n_kv_heads, length, width]."""
        return self.rows(0, self.length)

    def load(self, data: NDArray[Any]) -> None:
        """Replace the content by what `save` returned."""
        self._count(data)
        self.truncate(0)
        self.append(data)

    def _count(self, data: NDArray[Any]) -> int:
        """How many rows these are, if they are rows of such a cache."""
        shape = (*self.data.shape[:3], data.shape[3] if data.ndim == 5 else 0, self.data.shape[4])
        if data.dtype != self.data.dtype or data.shape != shape:
            raise SessionError(
                f"cached values {data.dtype}{list(data.shape)} are not of a {self.kind} cache of this model"
            )
        return int(data.shape[3])
