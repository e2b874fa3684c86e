"""A file of the network that makes one embedding of the subwords of a word (dynamic tokenization).

Feher et al. 2024 take the hypernetwork of ZeTT (Minixhofer et al. 2024): a small transformer reads the embeddings that
the parts of a new token have in the model, and predicts its embedding. Here, of parts e_1 to e_n, each over `scale`:

    h_i  = down e_i + place_i + count_n          [width], through `layers` of attention over the n parts and an mlp
    made = sum_i mix_n,i e_i + up mean_i rms(h_i)

`edgedec train-subwords` makes one. Plain arrays, hashed; nothing in it is run. Each word is computed by itself in
matrices of its own, so that its embedding does not depend on which other words are made at the same time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UsageError
from edgedec.spec import ModelSpec
from edgedec.storage.arrays import read_arrays, write_arrays

MAGIC = b"EDGESUBW"
HEADS = 4
EPS = 1e-6
_VERSION = 1
_MOST_LAYERS = 16
Array = NDArray[np.float32]
# Matrices of a layer, out by in as shares of the width.
LAYER = {"qkv": (3, 1), "o": (1, 1), "into": (4, 1), "back": (1, 4)}


@dataclass(frozen=True, eq=False)
class SubwordNetwork:
    """longest: parts that it takes at most; digest: names the content."""

    arrays: Mapping[str, Array]
    longest: int
    layers: int
    digest: str = ""

    def made(self, parts: Array) -> Array:
        """One embedding [n, hidden_size] of each word's parts [n, count, hidden_size]."""
        get, scale, count = self.arrays, self.arrays["scale"], parts.shape[1]
        x: Array = parts / scale
        h = x @ get["down"].T + get["place"][:count] + get["count"][count - 1]
        for layer in range(self.layers):
            h = h + self._attention(layer, _rms(h))
            h = h + np.maximum(_rms(h) @ get[f"{layer}.into"].T, 0) @ get[f"{layer}.back"].T
        held = _rms(h).mean(1, keepdims=True)
        mixed = (get["mix"][count - 1, :count, None] * x).sum(1)
        return ((mixed + (held @ get["up"].T)[:, 0]) * scale).astype(np.float32)

    def _attention(self, layer: int, h: Array) -> Array:
        n, count, width = h.shape
        qkv = (h @ self.arrays[f"{layer}.qkv"].T).reshape(n, count, 3, HEADS, -1)
        q, k, v = (np.ascontiguousarray(qkv[:, :, i].transpose(0, 2, 1, 3)) for i in range(3))
        scores = q @ k.transpose(0, 1, 3, 2) * np.float32((width // HEADS) ** -0.5)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (weights / weights.sum(-1, keepdims=True)) @ v
        return np.ascontiguousarray(mixed.transpose(0, 2, 1, 3)).reshape(h.shape) @ self.arrays[f"{layer}.o"].T


def _rms(x: Array) -> Array:
    return x / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + np.float32(EPS))


def save_subwords(path: str | os.PathLike[str], spec: ModelSpec, layers: int, arrays: Mapping[str, Array]) -> None:
    """Write a file for bundles of this spec."""
    header = {"version": _VERSION, "architecture": spec.architecture, "layers": layers}
    write_arrays(path, MAGIC, header, arrays, UsageError)


def open_subwords(path: str | os.PathLike[str], spec: ModelSpec) -> SubwordNetwork:
    """The network at `path`; UsageError if it is not one for models of this spec."""
    file = read_arrays(path, MAGIC, "a subword network's file", UsageError)
    version, architecture, layers = (file.header.get(name) for name in ("version", "architecture", "layers"))
    if version != _VERSION or architecture != spec.architecture:
        raise UsageError(
            f"{path}: version {version!r} for {architecture!r}: make it again for {spec.architecture!r} with "
            "`edgedec train-subwords`"
        )
    place = file.arrays.get("place", np.zeros((0, 0)))
    shapes = _shapes(spec.hidden_size, layers, place.shape)
    found = {name: (a.shape, a.dtype.name) for name, a in file.arrays.items()}
    if not shapes or found != {name: (shape, "float32") for name, shape in shapes.items()}:
        raise UsageError(f"{path}: its arrays do not fit this model of {spec.hidden_size}")
    if not all(np.isfinite(a).all() for a in file.arrays.values()) or not float(file.arrays["scale"]) > 0:
        raise UsageError(f"{path}: its numbers are not finite, or its scale is not above 0")
    return SubwordNetwork(file.arrays, len(place), int(layers), file.digest)  # type: ignore[arg-type]


def _shapes(hidden: int, layers: Any, place: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """The shape of each array by the number of layers and the shape [longest, width] of the places; none if these make
    no network."""
    if type(layers) is not int or not 0 <= layers <= _MOST_LAYERS or len(place) != 2:
        return {}
    longest, width = place
    if longest < 2 or width < HEADS or width % HEADS:
        return {}
    found: dict[str, tuple[int, ...]] = {"scale": (), "down": (width, hidden), "up": (hidden, width)}
    found |= {"place": place, "count": place, "mix": (longest, longest)}
    for layer in range(layers):
        found |= {f"{layer}.{name}": (out * width, into * width) for name, (out, into) in LAYER.items()}
    return found
