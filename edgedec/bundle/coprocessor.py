"""A coprocessor's file: the weights that compute latent cache entries (Deliberation in Latent Space).

Trained embeddings of rows that read the cache (`soft` [n, hidden_size]), low-rank weights of the model that they go
through, and a matrix (`out` [hidden_size, hidden_size]) that makes of their last states the rows that are cached.
`edgedec train-cache` makes one. Plain arrays, hashed; nothing in it is run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.adapter import LoraAdapter, LowRank, adapter_of
from edgedec.errors import UsageError
from edgedec.spec import ModelSpec
from edgedec.storage.arrays import read_arrays, write_arrays

MAGIC = b"EDGECOPR"
_VERSION = 1
Array = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Coprocessor:
    """soft [n, hidden_size]: the rows that read; adapter: what changes the model for them; out [hidden_size,
    hidden_size]: of their states, over their root mean square, the rows that are cached. digest: names the content."""

    soft: Array
    out: Array
    adapter: LoraAdapter
    digest: str

    def rows(self, states: Array) -> Array:
        """The rows to cache of the last states [n, hidden_size]."""
        size = np.sqrt(np.mean(np.square(states, dtype=np.float32), axis=-1, keepdims=True) + np.float32(1e-6))
        return (states / size @ self.out.T).astype(np.float32)


def save_coprocessor(
    path: str | os.PathLike[str], spec: ModelSpec, soft: Array, out: Array, matrices: Mapping[str, LowRank]
) -> None:
    """Write a file for bundles of this spec."""
    arrays: dict[str, NDArray[Any]] = {"soft": soft, "out": out}
    arrays |= {f"{matrix}.{part}": getattr(low, part) for matrix, low in matrices.items() for part in ("a", "b")}
    write_arrays(path, MAGIC, {"version": _VERSION, "architecture": spec.architecture}, arrays, UsageError)


def open_coprocessor(path: str | os.PathLike[str], spec: ModelSpec) -> Coprocessor:
    """The coprocessor at `path`; UsageError if it is not one for models of this spec."""
    file = read_arrays(path, MAGIC, "a coprocessor's file", UsageError)
    if file.header.get("version") != _VERSION or file.header.get("architecture") != spec.architecture:
        raise UsageError(
            f"{path}: version {file.header.get('version')!r} for {file.header.get('architecture')!r}: make it again "
            f"for {spec.architecture!r} with `edgedec train-cache`"
        )
    soft, out = (file.arrays.pop(name, np.zeros(0, np.float32)) for name in ("soft", "out"))
    hidden = spec.hidden_size
    good = soft.ndim == 2 and len(soft) and soft.shape[1] == hidden and out.shape == (hidden, hidden)
    if not good or not all(a.dtype == np.float32 and np.isfinite(a).all() for a in (soft, out)):
        raise UsageError(f"{path}: soft {soft.shape} and out {out.shape} do not fit this model of {hidden}")
    return Coprocessor(soft, out, adapter_of(path, spec, "coprocessor", file.digest, file.arrays), file.digest)
