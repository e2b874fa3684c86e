"""Labels learned from examples, and the file that holds them: a discrete key-value bottleneck.

Träuble et al. 2023: a vector is projected at random into short ones, one a codebook. A codebook has keys, which are
made once of texts without labels and then stay, and a value for each key: a number for each label. A text's logits are
the mean of the values of its nearest keys, one a codebook. Learning changes the values of the keys that its examples
hit and no others, so that earlier labels stay as they were wherever they hit other keys. Of keys that no example ever
hit nothing is known: a text that is to be labelled takes the nearest of the others, as with the authors.

The first value of a key is that of labels still unknown: learned like one that is always wrong, and what a new label
begins with. The authors have all labels from the start, which comes to the same.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.encoding.numeric import Array, squashed
from edgedec.errors import UsageError
from edgedec.storage.arrays import ArrayFile, read_arrays, write_arrays

MAGIC = b"EDGELABL"
_VERSION = 1
Hits = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class LearnedLabels:
    """encoder: the origin of the bundle whose vectors it labels. projections [codebooks, width, size]; keys [codebooks,
    keys, size]; values [codebooks, keys, 1 + labels]; used [codebooks, keys]: 1 where an example hit."""

    encoder: str
    labels: tuple[str, ...]
    projections: Array
    keys: Array
    values: Array
    used: NDArray[np.uint8]

    @cached_property
    def _lengths(self) -> Array:
        """The squared length of each key [codebooks, keys]."""
        return np.square(self.keys).sum(axis=-1)

    def hits(self, vector: Array, used: bool = False) -> Hits:
        """The nearest key of each codebook [codebooks] to a vector [width]; used: of those that examples hit."""
        short = vector @ self.projections
        far = self._lengths - 2 * (self.keys @ short[:, :, None])[:, :, 0]
        found: Hits = (np.where(self.used > 0, far, np.inf) if used else far).argmin(axis=1)
        return found

    def scores(self, vector: Array) -> dict[str, float]:
        """The share of every label, the highest first; they sum to 1."""
        if not self.labels:
            raise UsageError("labels: none are learned yet; add examples with `edgedec labels add`")
        at = np.arange(len(self.keys))
        logits = self.values[at, self.hits(vector, used=True)].mean(axis=0, dtype=np.float32)[1:]
        shares = squashed(logits, "softmax")
        return {self.labels[i]: float(shares[i]) for i in np.argsort(-shares, kind="stable")}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file, whole or not at all."""
        header = {"version": _VERSION, "encoder": self.encoder, "labels": list(self.labels)}
        arrays = {name: getattr(self, name) for name in _SHAPES}
        write_arrays(path, MAGIC, header, arrays, UsageError)


_SHAPES = {"projections": 3, "keys": 3, "values": 3, "used": 2}


def open_labels(path: str | os.PathLike[str], encoder: str, width: int) -> LearnedLabels:
    """The labels at `path`; UsageError unless they are for this encoder's vectors of `width`."""
    file = read_arrays(path, MAGIC, "a file of labels", UsageError)
    version, made_for = file.header.get("version"), file.header.get("encoder")
    labels: Any = file.header.get("labels")
    if version != _VERSION:
        raise UsageError(f"{path}: version {version!r} of a file of labels; make it again with `edgedec labels build`")
    if made_for != encoder:
        raise UsageError(f"{path}: labels of another encoder's vectors; build them again for this bundle")
    if not _are_labels(labels) or not _fit(file, len(labels), width):
        raise UsageError(f"{path}: its labels and arrays do not fit each other or this encoder; build them again")
    return LearnedLabels(encoder, tuple(labels), **{name: file.arrays[name] for name in _SHAPES})


def _are_labels(labels: Any) -> bool:
    if not isinstance(labels, list) or not all(isinstance(label, str) and label for label in labels):
        return False
    return len(set(labels)) == len(labels)


def _fit(file: ArrayFile, labels: int, width: int) -> bool:
    """Whether all arrays are there, of shapes that fit, finite, and with a key in use if there are labels."""
    arrays = file.arrays
    if {name: array.ndim for name, array in arrays.items()} != _SHAPES:
        return False
    codebooks, keys, size = arrays["keys"].shape
    shapes = [(codebooks, width, size), (codebooks, keys, size), (codebooks, keys, 1 + labels), (codebooks, keys)]
    if [arrays[name].shape for name in _SHAPES] != shapes or not min(codebooks, keys, size):
        return False
    types = [arrays[name].dtype.name for name in _SHAPES]
    if types != ["float32", "float32", "float32", "uint8"]:
        return False
    return all(np.isfinite(a).all() for a in arrays.values()) and (not labels or bool(arrays["used"].any(axis=1).all()))
