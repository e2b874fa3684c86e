"""The float model of an export, a layer at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import numpy as np
from numpy.typing import NDArray

from edgedec.cache.host import HostCache
from edgedec.export.layers import through_layer
from edgedec.runtime import Rows
from edgedec.runtime.long_ropes import with_long_ropes
from edgedec.runtimes.reference import Reference
from edgedec.spec import ModelSpec

Texts = Mapping[str, tuple[NDArray[np.int64], str]]


class FloatRun:
    """texts: {purpose: (ids, description)}."""

    def __init__(self, spec: ModelSpec, read: Callable[[str, int, int], NDArray[np.float32]], texts: Texts) -> None:
        # Reference in all but the ropes of long texts.
        self._runtime = cast(Reference, with_long_ropes(Reference(spec, read)))
        self._ids = {purpose: ids for purpose, (ids, _) in texts.items()}
        self._caches: dict[str, HostCache] = {p: self._runtime.new_cache(len(ids)) for p, ids in self._ids.items()}
        self._hidden = {p: self._runtime.embed(Rows.chain(ids, 0)) for p, ids in self._ids.items()}

    def layer(self, i: int) -> None:
        """Take all texts through layer i."""
        chunk = self._runtime.capabilities.prefill_chunk
        for purpose, ids in self._ids.items():
            cache, hidden = self._caches[purpose], self._hidden[purpose]
            self._hidden[purpose] = through_layer(self._runtime, cache, hidden, ids, i, chunk)

    def kept(self, b: int) -> NDArray[np.float32]:
        """Keys and values [2, n_kv_heads, n, head_dim] of attention block b on the calibration text."""
        kept: NDArray[np.float32] = self._caches["calibration"].data(b)[:, :, : len(self._ids["calibration"])]
        return kept

    def logits(self, purpose: str) -> NDArray[np.float32]:
        return self._runtime.head(self._hidden[purpose])
