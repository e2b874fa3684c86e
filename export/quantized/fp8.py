"""FP8 as DeepSeek and Qwen3 store it: `weight` E4M3 [out, in] times `weight_scale_inv`, one for each block of
`weight_block_size` (128 by 128) or one for all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.errors import CheckpointError
from edgedec.export.quantized import Found
from edgedec.export.quantized._float8 import float8, modules
from edgedec.export.safetensors import Stored

# Scales of activations, for engines that round these to FP8, too.
_SPARE = (".input_scale", ".activation_scale", ".k_scale", ".v_scale", ".input_scale_ub")


def matrices(settings: Mapping[str, Any], tensors: Mapping[str, Stored]) -> Found:
    """Every FP8 weight."""
    form = settings.get("fmt", "e4m3")
    if form != "e4m3":
        raise CheckpointError(f"config.json: quantization_config.fmt {form!r:.40} is not supported, only e4m3")
    block = _block(settings.get("weight_block_size"))
    scales = modules(tensors, ("_scale_inv", "_scale"))
    found = {name: float8(name, tensors[name], scale, tensors[scale], block) for name, scale in scales.items()}
    spare = frozenset(name for name in tensors if name.endswith(_SPARE))
    return Found(found, frozenset({*scales, *scales.values()}), spare)


def _block(found: Any) -> tuple[int, int] | None:
    if found is None:
        return None
    match found:
        case [int(rows), int(width)] if rows > 0 and width > 0:
            return rows, width
    raise CheckpointError(f"config.json: weight_block_size must be two sizes, found {found!r:.40}")
