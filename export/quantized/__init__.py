"""Readers of checkpoints whose weights are quantized already.

A reader finds the modules that its method stored, and gives each as a matrix under the name that the float weight would
have: its values as float32 and, where a bundle has a format for them, the integers as stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

from edgedec.errors import CheckpointError
from edgedec.export.quantized._matrix import IntegerMatrix, OwnMatrix, QuantizedMatrix
from edgedec.export.safetensors import Stored, read_json
from edgedec.plugins import Family, NoFacts

__all__ = ["FAMILY", "Found", "IntegerMatrix", "OwnMatrix", "Quantization", "QuantizedMatrix", "find"]

FAMILY: Family[NoFacts] = Family("edgedec.export.quantized", "quant_method", error=CheckpointError)
# Places of the settings: a key of config.json, or a file of its own with its method.
_KEYS = ("quantization_config", "compression_config")
_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq", "hf_quant_config.json": "modelopt"}


@dataclass(frozen=True)
class Found:
    """The findings of a reader. matrices: by the name of the float weight; used: the tensors that they are made of;
    spare: tensors that are of no use to a bundle, such as scales of activations."""

    matrices: Mapping[str, QuantizedMatrix]
    used: frozenset[str]
    spare: frozenset[str] = frozenset()


class Reader(Protocol):
    """What a file of this folder provides."""

    def matrices(self, settings: Mapping[str, Any], tensors: Mapping[str, Stored]) -> Found:
        """The quantized modules among `tensors`; CheckpointError or BadTensor for what is not supported."""


@dataclass(frozen=True)
class Quantization:
    """The method of a checkpoint and its modules."""

    method: str
    found: Found = field(repr=False)


def find(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Stored]) -> Quantization | None:
    """The quantization of a checkpoint; None if it has none."""
    settings = _settings(folder, config)
    if not settings:
        return None
    method = settings.get("quant_method")
    if method not in FAMILY:
        raise CheckpointError(
            f"config.json: quantization_config.quant_method {method!r:.40} is not one of {', '.join(FAMILY.names())}; "
            "export the original checkpoint"
        )
    reader = cast(Reader, FAMILY.file(str(method)))
    found = reader.matrices(settings, tensors)
    if not found.matrices:
        raise CheckpointError(f"{folder}: no {method} weights, though the config says that it is quantized")
    for name in sorted(found.matrices):
        if name in tensors and name not in found.used:
            raise CheckpointError(f"{name}: there as floats and, quantized by {method}, once more; remove one of them")
    return Quantization(str(method), found)


def without_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config of the float model."""
    return {key: value for key, value in config.items() if key not in _KEYS}


def _settings(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    for key in _KEYS:
        if config.get(key):
            settings = config[key]
            if not isinstance(settings, dict):
                raise CheckpointError(f"config.json: {key} must be an object, found {settings!r:.40}")
            return settings
    for name, method in _FILES.items():
        if (folder / name).is_file():
            return {"quant_method": method, **read_json(folder / name)}
    return {}
