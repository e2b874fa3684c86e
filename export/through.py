"""Rows of a tensor that go through a layer before they are a weight of a bundle (`models.Through`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np

from edgedec.errors import BadTensor
from edgedec.export.moved import part_shape
from edgedec.export.safetensors import Array
from edgedec.models import Part


class StoredTensor(Protocol):
    """A tensor of a checkpoint."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def values(self, name: str, row: int, shape: tuple[int, ...], /) -> Array: ...


def shape_of(part: Part, tensors: Mapping[str, StoredTensor], folder: Path) -> tuple[int, ...]:
    """The shape of a part; BadTensor if the checkpoint has no such one, or a layer does not fit it."""
    for name in part.names:
        if name not in tensors:
            raise BadTensor(f"{name}: missing from {folder}")
    shape = part_shape(part, tensors[part.name].shape)
    if part.through is None:
        return shape
    (first, last), width = part.through.rows, shape[-1]
    wanted = {part.through.weight: (part.through.size, width), part.through.bias: (part.through.size,)}
    wanted |= dict.fromkeys(part.through.norm or (), (width,))
    for name in part.through.names:
        if len(shape) != 2 or tensors[name].shape != wanted[name]:
            found = f"has shape {tensors[name].shape}, expected {wanted[name]}"
            raise BadTensor(f"{name}: {found}: rows of {part.name} {shape} go through it")
    return (shape[0], last - first)


def passed(part: Part, tensors: Mapping[str, StoredTensor], row: int, count: int) -> Array:
    """Rows row to row + count - 1 of a part that goes through a layer, computed in float64."""
    layer = part.through
    assert layer is not None
    width = tensors[part.name].shape[-1]

    def stored(name: str, first: int, *shape: int) -> Array:
        return tensors[name].values(name, first, shape).astype(np.float64)

    x = stored(part.name, row + (part.rows[0] if part.rows else 0), count, width)
    if layer.norm is not None:
        x = x - x.mean(axis=1, keepdims=True)
        x /= np.sqrt(np.square(x).mean(axis=1, keepdims=True) + layer.eps)
        x = x * stored(layer.norm[0], 0, width) + stored(layer.norm[1], 0, width)
    first, last = layer.rows
    y = x @ stored(layer.weight, first, last - first, width).T
    if layer.bias:
        y += stored(layer.bias, first, last - first)
    return y.astype(np.float32)
