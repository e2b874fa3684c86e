"""One sequence's keys and values, for every runtime.

`data` is one array [n_layers, 2, n_kv_heads, allocated, width]: keys and values of a layer are
plain views of it, so that a runtime writes in place and `keep` moves all layers at once. It grows
by doubling up to `capacity`; `f32` and `f16` hold numbers, `int8` and `int4` hold q with a static
scale per channel (value = q * scale; int4: two channels a byte, low nibble first, stored q + 8),
unless a runtime lays out its rows in its own way.
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
        self, spec: ModelSpec, capacity: int, kv: str = "f32", row: tuple[Any, int] | None = None, kind: str = ""
    ) -> None:
        """`row`: type and width of a head's row, if not those above; `kind` is then the name of that layout."""
        if kv not in KV_FORMATS:
            raise UsageError(f"no KV format {kv!r}; there are: {', '.join(KV_FORMATS)}")
        if capacity < 1:
            raise UsageError(f"capacity {capacity}: a cache needs room for at least one row")
        self.spec, self.capacity, self.kv, self.kind = spec, capacity, kv, kind or kv
        self._row = row or (_DTYPES[kv], spec.head_dim // 2 if kv == "int4" else spec.head_dim)
        self.length = 0
        self.data = self._allocate(min(_FIRST, capacity))

    def _allocate(self, rows: int) -> NDArray[Any]:
        dtype, width = self._row
        return np.zeros((self.spec.n_layers, 2, self.spec.n_kv_heads, rows, width), dtype)

    @property
    def allocated(self) -> int:
        return int(self.data.shape[3])

    def reserve(self, rows: int) -> None:
        """Make sure that `rows` rows fit behind the committed ones; ContextFull if they never can."""
        need = self.length + rows
        if need > self.capacity:
            raise ContextFull(f"{need} rows do not fit a cache of {self.capacity}")
        if need > self.allocated:
            grown = self._allocate(min(self.capacity, max(need, 2 * self.allocated)))
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

    def keep(self, rows: Sequence[int]) -> None:
        """Commit these rows of the last call (ascending row numbers of its tree), drop the others.

        Worked example: length 3, a call wrote rows 0..3 to slots 3..6; keep([0, 2, 3]) moves
        slots 5, 6 to 4, 5 and sets length 6.
        """
        if all(i == row for i, row in enumerate(rows)):
            self.length += len(rows)
            return
        source = np.asarray(rows, np.int64) + self.length
        target = np.arange(self.length, self.length + len(source))
        moved = source != target
        if moved.any():
            self.data[:, :, :, target[moved]] = self.data[:, :, :, source[moved]]
        self.length += len(source)

    def fork(self) -> Cache:
        """An independent copy of the committed tokens."""
        twin = Cache(self.spec, self.capacity, self.kv, self._row, self.kind)
        twin.load(self.save())
        return twin

    def save(self) -> NDArray[Any]:
        """The committed tokens' keys and values [n_layers, 2, n_kv_heads, length, width]."""
        return self.data[:, :, :, : self.length]

    def load(self, data: NDArray[Any]) -> None:
        """Replace the content by what `save` returned."""
        shape = (*self.data.shape[:3], data.shape[3] if data.ndim == 5 else 0, self.data.shape[4])
        if data.dtype != self.data.dtype or data.shape != shape:
            raise SessionError(
                f"cached values {data.dtype}{list(data.shape)} are not of a {self.kind} cache of this model"
            )
        self.length = 0
        self.reserve(data.shape[3])
        self.data[:, :, :, : data.shape[3]] = data
        self.length = int(data.shape[3])
