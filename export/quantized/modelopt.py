"""NVFP4 and FP8 as NVIDIA's Model Optimizer stores them: `weight` uint8 [out, in / 2] with `weight_scale` E4M3
[out, in / 16] times `weight_scale_2`, one float32; or `weight` E4M3 times a float `weight_scale`, one, by output, or by
block of 128 by 128.

The settings stand in `hf_quant_config.json`, below "quantization", or in config.json. Which modules are quantized, and
how, the tensors show.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from edgedec.errors import CheckpointError
from edgedec.export.quantized import Found, QuantizedMatrix
from edgedec.export.quantized._float8 import float8, modules
from edgedec.export.quantized._nvfp4 import SHARED, nvfp4
from edgedec.export.safetensors import Stored

_NVFP4, _MIXED = ("NVFP4", "W4A16_NVFP4"), "MIXED_PRECISION"
ALGORITHMS = (*_NVFP4, "FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", _MIXED)
_BLOCK = (128, 128)
_WHOLE = ".weight_scale_2"
# Scales of activations and caches, which a bundle's engines do not use.
_SPARE = (".input_scale", ".output_scale", ".k_scale", ".v_scale")


def matrices(settings: Mapping[str, Any], tensors: Mapping[str, Stored]) -> Found:
    """Every weight with a weight_scale_2, and every FP8 weight."""
    for where, of in _algorithms(settings):
        _require_known(where, of)
    scales = modules(tensors, ("_scale",))
    found: dict[str, QuantizedMatrix] = {
        name: float8(name, tensors[name], scale, tensors[scale], _BLOCK) for name, scale in scales.items()
    }
    used = {*scales, *scales.values()}
    for whole in tensors:
        if whole.endswith(_WHOLE):
            weight = whole.removesuffix("_scale_2")
            found[weight] = nvfp4(weight, f"{weight}_scale", whole, tensors, divides=False)
            used |= {weight, f"{weight}_scale", whole}
    return Found(found, frozenset(used), frozenset(name for name in tensors if name.endswith(_SPARE)))


def _algorithms(settings: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The settings of all modules, and of those that have their own."""
    found = _object("quantization", settings.get("quantization", settings))
    yield "all modules", found
    if str(found.get("quant_algo")).upper() == _MIXED:
        for name, of in _object("quantized_layers", found.get("quantized_layers", {})).items():
            yield f"{name:.80}", _object(f"{name:.80}", of)


def _object(where: str, found: Any) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        raise CheckpointError(f"modelopt: {where} must be an object, found {found!r:.40}")
    return found


def _require_known(where: str, settings: Mapping[str, Any]) -> None:
    algorithm = settings.get("quant_algo")
    if not isinstance(algorithm, str) or algorithm.upper() not in ALGORITHMS:
        known = ", ".join(ALGORITHMS)
        raise CheckpointError(f"modelopt: quant_algo {algorithm!r:.40} of {where} is not one of {known}")
    size = settings.get("group_size") or SHARED
    if algorithm.upper() in _NVFP4 and size != SHARED:
        raise CheckpointError(f"modelopt: group_size {size!r:.40} of {where}; NVFP4 has scales for {SHARED} weights")
