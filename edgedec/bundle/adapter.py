"""LoRA adapters: low-rank weights added to matrices of a bundle, y = W x + B (A x), for the calls that name them.

An adapter file holds, for each matrix it changes, `name.a` [rank, in] and `name.b` [out, rank] in float32; the scale
is in b. `edgedec adapter` makes one of a PEFT checkpoint. An adapter that may be one of a set (`routed`) has gates too:
for each part of a matrix, which the checkpoint has as a matrix of its own, `name.gates` [parts, in] in float32 and
`name.parts` [parts, 3] in int32.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UsageError
from edgedec.spec import OUTER, ModelSpec, Moe, PreRouter
from edgedec.spec.moe import level_name
from edgedec.storage.arrays import read_arrays, write_arrays

MAGIC = b"EDGELORA"
_VERSION, _MOST_PARTS = 1, 8
# The matrices of an `Moe` block that hold its experts, of level 0.
STACKED = ("gate_up", "up", "down")
Array = NDArray[np.float32]


class Gates(NamedTuple):
    """vectors [parts, in]: the gate of each part of a matrix; parts [parts, 3]: how many of the ranks are its own, one
    part after another, its first output and how many outputs it has."""

    vectors: Array
    parts: NDArray[np.int32]


class LowRank(NamedTuple):
    """a [rank, in], b [out, rank]: what is added to a matrix [out, in] is b @ a. gates: of an adapter that may be one
    of a set."""

    a: Array
    b: Array
    gates: Gates | None = None


@dataclass(frozen=True, eq=False)
class LoraAdapter:
    """The low-rank weights of one adapter, by the names of a bundle's matrices. `digest` names its content."""

    name: str
    digest: str
    matrices: Mapping[str, LowRank]

    def apply(self, name: str, x: Array, y: Array) -> Array:
        """y [n, out] of the matrix `name` on x [n, in], with the adapter's addition."""
        part = self.matrices.get(name)
        if part is None:
            return y
        return (y + (x @ part.a.T) @ part.b.T).astype(np.float32, copy=False)

    @property
    def rank(self) -> int:
        """The largest rank of its matrices."""
        return max((len(part.a) for part in self.matrices.values()), default=0)


def adaptable(spec: ModelSpec) -> frozenset[str]:
    """The matrices that an adapter may change: those of blocks, but for stacked experts, projections of streams and
    pre-routers."""
    experts = {
        f"blocks.{b}.{level_name(name, level)}"
        for b, block in enumerate(spec.blocks)
        if isinstance(block, Moe)
        for name in STACKED
        for level in range(block.n_levels)
    }
    projections = {f"blocks.{b}.{name}" for b, block in spec.altups.items() for name in block.projections}
    routers = {
        name for b, block in enumerate(spec.blocks) if isinstance(block, PreRouter) for name in spec.block_tensors(b)
    }
    return spec.matrices - experts - projections - routers - OUTER


def save_adapter(path: str | os.PathLike[str], name: str, spec: ModelSpec, matrices: Mapping[str, LowRank]) -> None:
    """Write an adapter file for bundles of this spec."""
    arrays = {f"{matrix}.{part}": getattr(low, part) for matrix, low in matrices.items() for part in ("a", "b")}
    gates = {matrix: low.gates for matrix, low in matrices.items() if low.gates is not None}
    arrays |= {f"{matrix}.gates": found.vectors for matrix, found in gates.items()}
    arrays |= {f"{matrix}.parts": found.parts for matrix, found in gates.items()}
    header = {"version": _VERSION, "name": name, "architecture": spec.architecture}
    write_arrays(path, MAGIC, header, arrays, UsageError)


def open_adapter(path: str | os.PathLike[str], spec: ModelSpec) -> LoraAdapter:
    """The adapter at `path`; UsageError if it is not one for models of this spec."""
    if Path(path).is_dir():
        raise UsageError(f"{path}: a folder, not an adapter file; `edgedec adapter {path} -m BUNDLE` makes one")
    file = read_arrays(path, MAGIC, "an adapter file", UsageError)
    if file.header.get("version") != _VERSION:
        raise UsageError(
            f"{path}: adapter version {file.header.get('version')!r}; make it again with `edgedec adapter`"
        )
    if file.header.get("architecture") != spec.architecture:
        raise UsageError(f"{path}: an adapter for {file.header.get('architecture')!r}, not for {spec.architecture!r}")
    return adapter_of(path, spec, str(file.header.get("name", "")), file.digest, file.arrays)


def adapter_of(
    path: object, spec: ModelSpec, name: str, digest: str, arrays: Mapping[str, NDArray[Any]]
) -> LoraAdapter:
    """The adapter of low-rank arrays from the file at `path`; UsageError if they do not fit this spec."""
    names = sorted({name.rpartition(".")[0] for name in arrays})
    return LoraAdapter(name, digest, {name: _low_rank(path, spec, name, arrays) for name in names})


def _low_rank(path: object, spec: ModelSpec, name: str, arrays: Mapping[str, NDArray[Any]]) -> LowRank:
    a, b, shape = arrays.get(f"{name}.a"), arrays.get(f"{name}.b"), spec.tensors().get(name)
    if a is None or b is None or shape is None or name not in adaptable(spec) or a.ndim != 2 or b.ndim != 2:
        raise UsageError(f"{path}: {name} is no matrix of this model; make the adapter again for this bundle")
    # A matrix may be stacked from several, whose ranks lie side by side.
    if (b.shape[0], a.shape[1]) != shape or b.shape[1] != len(a) or not 0 < len(a) <= _MOST_PARTS * max(shape):
        raise UsageError(f"{path}: {name} does not fit this model; make the adapter again for this bundle")
    if a.dtype != np.float32 or b.dtype != np.float32 or not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise UsageError(f"{path}: {name} is not finite float32; make the adapter again")
    return LowRank(a, b, _gates(path, name, arrays, shape, len(a)))


def _gates(
    path: object, name: str, arrays: Mapping[str, NDArray[Any]], shape: tuple[int, ...], rank: int
) -> Gates | None:
    vectors, parts = arrays.get(f"{name}.gates"), arrays.get(f"{name}.parts")
    if vectors is None and parts is None:
        return None
    if vectors is None or parts is None or not _fit(vectors, parts, shape, rank):
        raise UsageError(f"{path}: the gates of {name} do not fit this model; make the adapter again for this bundle")
    if vectors.dtype != np.float32 or not np.isfinite(vectors).all():
        raise UsageError(f"{path}: the gates of {name} are not finite float32; train them again")
    return Gates(vectors, parts)


def _fit(vectors: NDArray[Any], parts: NDArray[Any], shape: tuple[int, ...], rank: int) -> bool:
    """Whether there is a gate for each part, and the parts are distinct outputs of the matrix, in their order."""
    if parts.ndim != 2 or parts.shape[1] != 3 or parts.dtype != np.int32 or not len(parts):
        return False
    ranks, first, count = parts.T.astype(np.int64)
    ends = np.concatenate([[0], first + count])
    inside = (first >= ends[:-1]).all() and ends[-1] <= shape[0]
    return (
        vectors.shape == (len(parts), shape[1]) and ranks.sum() == rank and bool((parts[:, ::2] > 0).all() and inside)
    )
