"""The head of every report: the host, the versions, the model."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import TYPE_CHECKING, Any

from edgedec.bench import host

if TYPE_CHECKING:
    from edgedec.bundle.folder import Bundle
    from edgedec.bundle.manifest import Tensor
    from edgedec.model import Model


def describe(bundle: Bundle) -> dict[str, Any]:
    """The host, the installed versions, and the model's name and formats."""
    manifest = bundle.manifest
    return {
        "host": {
            "cpu": host.cpu_model(),
            "cores": host.cores(),
            "features": host.cpu_features(),
            "os": host.system(),
        },
        "versions": host.versions(),
        "model": manifest.name,
        "quantization": manifest.quantization,
        "bits_per_weight": bits_per_weight(manifest.tensors.values()),
    }


def describe_opened(model: Model, threads: int) -> dict[str, Any]:
    """The description of an opened model, with its engine and device."""
    return {
        **describe(model.bundle),
        "engine": model.runtime.name,
        "threads": threads,
        "kv": model.runtime.new_cache(1).kv,
    }


def bits_per_weight(tensors: Iterable[Tensor]) -> float:
    """Stored bits for each weight, scales, zero points and padding included; 0 if the weights are inside a graph."""
    every = list(tensors)
    stored = sum(t.stored_bytes for t in every)
    return round(8 * stored / (sum(prod(t.shape) for t in every) or 1), 3)
