"""Parts of tensors of a checkpoint (`models.Part`): their shapes, and rows that are stored in another order."""

from __future__ import annotations

import math

import numpy as np

from edgedec.errors import BadTensor
from edgedec.export.safetensors import Array
from edgedec.models import Part


def part_shape(part: Part, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a part of a tensor of `shape` without products (`products`); BadTensor if it has no such part."""
    if not shape and not part.vector:
        raise BadTensor(f"{part.name}: a scalar has no rows")
    if part.ones:
        return (part.rows[1] - part.rows[0] if part.rows else shape[-1],)
    if part.vector:
        shape = (math.prod(shape),)
    elif part.flat and len(shape) > 2:
        shape = (math.prod(shape[:-1]), shape[-1])
    a, b = part.rows or (0, shape[0])
    if not 0 <= a <= b <= shape[0]:
        raise BadTensor(f"{part.name}: has {shape[0]} rows, not {a} to {b}")
    return _in_order(part, (b - a, *shape[1:]))


def _in_order(part: Part, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the stored rows `shape` once they are in order; BadTensor if they cannot be."""
    if part.transposed:
        if len(shape) != 2:
            raise BadTensor(f"{part.name}: {list(shape)} is no matrix")
        shape = (shape[1], shape[0])
    if part.beside > 1:
        if len(shape) != 2 or shape[1] % part.beside:
            raise BadTensor(f"{part.name}: {list(shape)} is not {part.beside} matrices side by side")
        shape = (shape[0] * part.beside, shape[1] // part.beside)
    if part.halves is not None:
        size, first, count = part.halves
        if shape[0] % size or first + count > size or count % 2:
            raise BadTensor(f"{part.name}: its {shape[0]} rows are not groups of {size} with {count} in pairs")
    if part.in_turn is not None and (len(shape) != 2 or shape[1] % math.prod(part.in_turn)):
        groups, width = part.in_turn
        raise BadTensor(f"{part.name}: its {shape[-1]} columns are not pieces of {width} of {groups} groups")
    return shape


def stored_shape(part: Part, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the stored rows of a part that has `shape` once they are in order."""
    if part.beside > 1:
        shape = (shape[0] // part.beside, shape[1] * part.beside)
    return (shape[1], shape[0]) if part.transposed else shape


def moved(part: Part, stored: Array) -> Array:
    """The stored rows in order.

    beside 2: rows 0 1 | 2 3, 4 5 | 6 7 -> 0 1, 4 5, 2 3, 6 7
    halves (4, 1, 2): rows 0 1 2 3 4 5 6 7 -> 0 1 2 3 4 5 6 7; halves (4, 0, 4): -> 0 2 1 3 4 6 5 7
    in_turn (2, 1): columns 0 1 2 3 -> 0 2 1 3
    """
    rows = np.ascontiguousarray(stored.T) if part.transposed else stored
    if part.beside > 1:
        rows = np.concatenate(np.split(rows, part.beside, axis=1))
    if part.in_turn is not None:
        groups, width = part.in_turn
        rows = rows.reshape(len(rows), -1, groups, width).swapaxes(1, 2).reshape(rows.shape)
    if part.halves is None:
        return rows
    size, first, count = part.halves
    order = np.arange(size)
    order[first : first + count] = first + np.arange(count).reshape(-1, 2).T.ravel()
    found: Array = rows.reshape(-1, size, *rows.shape[1:])[:, order].reshape(rows.shape)
    return found
