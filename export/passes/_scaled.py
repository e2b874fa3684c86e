"""Models with columns and rows of their matrices scaled, and what may be scaled with what."""

from __future__ import annotations

import numpy as np

from edgedec.export.passes._statistics import Float64
from edgedec.runtimes.reference.numeric import Array, Weights
from edgedec.spec import LatentAttention, ModelSpec, Moe

# The matrices that read a block's norm, quantized or not.
_READERS = {
    "attention": ("qkv",),
    "latent": ("q_a", "q", "kv_a"),
    "mlp": ("gate_up", "up"),
    "moe": ("router", "gate_up", "up", "shared_gate_up", "shared_up", "shared_gate"),
    "ssm": ("in_proj",),
    "conv": ("in_proj",),
    "delta": ("in_proj",),
    "shared_attention": ("q",),
}


def readers(spec: ModelSpec) -> dict[str, tuple[str, ...]]:
    """The norms whose weights only scale the columns of matrices, each with these matrices."""
    shapes, found = spec.tensors(), dict[str, tuple[str, ...]]()
    for b, block in enumerate(spec.blocks):
        if block.kind not in _READERS or getattr(block, "paired", False):
            continue
        names = [f"blocks.{b}.{name}" for name in _READERS[block.kind]]
        if isinstance(block, LatentAttention) and block.q_rank:
            names.remove(f"blocks.{b}.q")  # it reads what q_a makes
        if isinstance(block, Moe) and (block.router_norm or block.early_router):
            names.remove(f"blocks.{b}.router")  # it has a norm of its own, or none
        found[f"blocks.{b}.norm"] = tuple(name for name in names if name in shapes)
    if not spec.tied:
        found["final_norm"] = ("head",)
    return {norm: names for norm, names in found.items() if norm in shapes and f"{norm}_bias" not in shapes}


class Scaled:
    """Weights with factors: `read` gives a matrix with its columns and rows multiplied."""

    def __init__(self, read: Weights) -> None:
        self._inner = read
        self._columns, self._rows, self._set = dict[str, Float64](), dict[str, Float64](), dict[str, Float64]()

    def columns(self, name: str, factors: Float64) -> None:
        """Multiply the columns of a matrix by these [k]."""
        self._columns[name] = factors * self._columns.get(name, 1.0)

    def rows(self, name: str, factors: Float64) -> None:
        """Multiply the rows of a matrix, or the values of a vector, by these [n]."""
        self._rows[name] = factors * self._rows.get(name, 1.0)

    def set(self, name: str, values: Float64) -> None:
        """Let a vector have these values."""
        self._set[name] = values

    def read(self, name: str, start: int, stop: int) -> Array:
        if name in self._set:
            return self._set[name][start:stop].astype(np.float32)
        found = self._inner(name, start, stop)
        if name in self._columns:
            found = (found * self._columns[name]).astype(np.float32)
        if name in self._rows:
            factors = self._rows[name][start:stop]
            found = (found * (factors if found.ndim == 1 else factors[:, None])).astype(np.float32)
        return found
