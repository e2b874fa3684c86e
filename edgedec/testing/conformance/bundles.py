"""Bundles of random weights: what the suite runs on. Artifacts of runtimes that need files come from the exporter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle import Bundle
from edgedec.bundle.manifest import Text, WeightFormat
from edgedec.spec import KV_FORMATS, ModelSpec

if TYPE_CHECKING:
    from edgedec.export.weights import Kept

Array = NDArray[np.float32]
# Keys and values of these models stay below this in absolute value, mostly.
_LARGEST = 6.0


def random_weights(spec: ModelSpec, seed: int = 0) -> dict[str, Array]:
    """Matrices that keep a row's size, norms around one, small biases, decays of a recurrent block below zero."""
    rng = np.random.default_rng(seed)
    return {name: _random_weight(rng, name, shape) for name, shape in spec.tensors().items()}


def _random_weight(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> Array:
    values = rng.standard_normal(shape, np.float32)
    if name.endswith(".a"):
        return -np.exp(values * np.float32(0.5))
    if name.endswith(".coefs"):  # so that streams stay in size
        return values * np.float32(0.2)
    if len(shape) == 2:
        return values * np.float32((0.5 if name == "embed" else 1.5) / shape[-1] ** 0.5)
    return np.float32(0.0 if name.endswith(("bias", "lambdas")) else 1.0) + np.float32(0.2) * values


def write_bundle(
    folder: Path,
    spec: ModelSpec,
    weights: Mapping[str, Array],
    fmt: WeightFormat = "f32",
    runtimes: tuple[str, ...] = (),
    kv: tuple[str, ...] = KV_FORMATS,
    kept: Callable[[str], Kept | None] = lambda name: None,
) -> Bundle:
    """A bundle of these weights in the empty or missing `folder`, with the artifacts of `runtimes`. kept: a matrix as
    it is stored, of those that are quantized already."""
    from edgedec.export.writer import Add, BundleWriter, Contents, Scales

    def fill(add: Add) -> Scales:
        for name in spec.tensors():
            add(name, _rows_of(weights[name]), kept(name))
        return {kv: _scales(spec, steps) for kv, steps in (("int8", 127), ("int4", 7))}

    folder.mkdir(parents=True, exist_ok=True)
    formats: dict[str, WeightFormat] = {"body": fmt, "head": fmt, "embed": fmt}
    contents = Contents(folder.name, spec.check(), Text(None), formats, 32, kv, runtimes=runtimes)
    BundleWriter(folder, contents).write(fill)
    return Bundle.open(folder)


def _rows_of(weight: Array) -> Callable[[int, int], Array]:
    return lambda start, stop: weight[start:stop]


def _scales(spec: ModelSpec, steps: int) -> list[Array]:
    """Static scales of a quantized cache, [2, n_kv_heads, head_dim] for each attention block."""
    return [
        np.full((block.kv_parts, block.n_kv_heads, block.head_dim), _LARGEST / steps, np.float32)
        for block in spec.attention.values()
    ]
