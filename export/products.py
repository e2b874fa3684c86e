"""Parts of tensors (`models.Part`) that products with other tensors make: rows that go through a layer, an adapter
added to shared weights, a matrix that another is multiplied by, a row added to each. Sums are in float64 and rounded to
float32 once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from edgedec.errors import BadTensor
from edgedec.export.moved import part_shape
from edgedec.export.safetensors import Array
from edgedec.models import Part, Through

Shape = tuple[int, ...]
Doubles = npt.NDArray[np.float64]
Read = Callable[[str, tuple[int, int] | None], Doubles]


class StoredTensor(Protocol):
    """A tensor of a checkpoint."""

    @property
    def shape(self) -> Shape: ...


def shape_of(part: Part, tensors: Mapping[str, StoredTensor], folder: Path) -> Shape:
    """The shape of a part; BadTensor if the checkpoint lacks a tensor of it, or if one does not fit."""
    for name in part.names:
        if name not in tensors:
            raise BadTensor(f"{name}: missing from {folder}")
    shape = part_shape(part, tensors[part.name].shape)
    if part.left:
        left = tensors[part.left].shape
        if len(left) != 2 or left[1] != shape[0]:
            raise BadTensor(f"{part.left}: {list(left)} does not multiply {part.name} {list(shape)}")
        shape = (left[0], *shape[1:])
    if part.plus:
        up, down = (tensors[name].shape for name in part.plus)
        if len(up) != 2 or len(down) != 2 or up[1] != down[0] or (up[0], down[1]) != shape:
            raise BadTensor(f"{part.plus[0]}: {list(up)} times {list(down)} is not added to {part.name} {list(shape)}")
    if part.each and (len(shape) != 2 or tensors[part.each].shape[1:] != shape[1:]):
        found = list(tensors[part.each].shape)
        raise BadTensor(f"{part.each}: {found} has no row for those of {part.name} {list(shape)}")
    return _through_shape(part.name, shape, part.through, tensors) if part.through else shape


def _through_shape(part: str, shape: Shape, layer: Through, tensors: Mapping[str, StoredTensor]) -> Shape:
    (first, last), width = layer.rows, shape[-1]
    wanted = {layer.weight: (layer.size, width), layer.bias: (layer.size,)}
    wanted |= dict.fromkeys(layer.norm or (), (width,))
    for name in layer.names:
        if len(shape) != 2 or tensors[name].shape != wanted[name]:
            found = f"has shape {tensors[name].shape}, expected {wanted[name]}"
            raise BadTensor(f"{name}: {found}: rows of {part} {shape} go through it")
    return (shape[0], last - first)


def product_rows(part: Part, start: int, stop: int, rows: Callable[[str, tuple[int, int] | None], Array]) -> Array:
    """Rows start to stop-1 of a part. rows: of a tensor by its name; None: all of them.

    left: (left W)[start:stop] = left[start:stop] W
    plus: (W + up down)[start:stop] = W[start:stop] + up[start:stop] down
    each: W[start:stop] + each[0]
    """

    def read(name: str, of: tuple[int, int] | None) -> Doubles:
        return rows(name, of).astype(np.float64)

    first = part.rows[0] if part.rows else 0
    if part.left:
        found = read(part.left, (start, stop)) @ read(part.name, part.rows)
    else:
        found = read(part.name, (first + start, first + stop))
    if part.plus:
        up, down = part.plus
        found = found + read(up, (start, stop)) @ read(down, None)
    if part.each:
        found = found + read(part.each, (0, 1))
    return (found if part.through is None else _passed(part.through, found, read)).astype(np.float32)


def _passed(layer: Through, x: Doubles, read: Read) -> Doubles:
    """What a layer makes of rows."""
    every = (0, x.shape[1])
    if layer.norm is not None:
        x = x - x.mean(axis=1, keepdims=True)
        x /= np.sqrt(np.square(x).mean(axis=1, keepdims=True) + layer.eps)
        x = x * read(layer.norm[0], every) + read(layer.norm[1], every)
    y = x @ read(layer.weight, layer.rows).T
    return y + read(layer.bias, layer.rows) if layer.bias else y
