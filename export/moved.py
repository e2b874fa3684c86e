"""Rows of a checkpoint that are stored in another order than a bundle has them (`models.Part`)."""

from __future__ import annotations

import numpy as np

from edgedec.errors import BadTensor
from edgedec.export.safetensors import Array
from edgedec.models import Part


def check_moved(part: Part, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the stored rows `shape` once they are in order; BadTensor if they cannot be."""
    if part.transposed:
        if len(shape) != 2:
            raise BadTensor(f"{part.name}: {list(shape)} is no matrix")
        shape = (shape[1], shape[0])
    if part.halves is not None:
        size, first, count = part.halves
        if shape[0] % size or first + count > size or count % 2:
            raise BadTensor(f"{part.name}: its {shape[0]} rows are not groups of {size} with {count} in pairs")
    return shape


def moved(part: Part, stored: Array) -> Array:
    """The stored rows in order.

    halves (4, 1, 2): rows 0 1 2 3 4 5 6 7 -> 0 1 2 3 4 5 6 7; halves (4, 0, 4): -> 0 2 1 3 4 6 5 7
    """
    rows = np.ascontiguousarray(stored.T) if part.transposed else stored
    if part.halves is None:
        return rows
    size, first, count = part.halves
    order = np.arange(size)
    order[first : first + count] = first + np.arange(count).reshape(-1, 2).T.ravel()
    found: Array = rows.reshape(-1, size, *rows.shape[1:])[:, order].reshape(rows.shape)
    return found
