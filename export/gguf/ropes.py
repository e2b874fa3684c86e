"""The rope entries of config.json for the model in a GGUF file."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from edgedec.export.gguf.metadata import GgufFacts

Config = dict[str, Any]


def rope_config(f: GgufFacts, dim: int, context: int, alike: bool = False) -> Config:
    """The rope's base, scaling and share of a head, in the older form of configs. alike: of YaRN's two scales, that of
    sines and cosines and that of scores, the file has one for both, so that only scores of latent attention change."""
    rotated = f.whole("rope.dimension_count", dim)
    found: Config = {"rope_theta": f.number("rope.freq_base", 10000.0)}
    if rotated != dim:
        found["partial_rotary_factor"] = rotated / dim
    scaling = _rope_scaling(f, context, alike)
    return found | ({"rope_scaling": scaling} if scaling else {})


def _rope_scaling(f: GgufFacts, context: int, alike: bool) -> Config | None:
    kind = f.text(f.name("rope.scaling.type"), "none")
    factor = f.number("rope.scaling.factor", 0.0) or f.number("rope.scale_linear", 0.0) or 1.0
    original = f.whole("rope.scaling.original_context_length", context, least=1)
    attention = f.number("rope.scaling.attn_factor", 1.0)
    if "rope_freqs.weight" in f.file.tensors:
        divisors = [value * (factor if kind == "linear" else 1.0) for value in _vector(f, "rope_freqs.weight")]
        return _divided(divisors, divisors, attention, context)
    if "rope_factors_short.weight" in f.file.tensors:
        short, long = (_vector(f, f"rope_factors_{name}.weight") for name in ("short", "long"))
        return _divided(short, long, attention, original)
    if kind == "yarn":
        return _yarn(f, factor, original, attention, alike)
    if kind not in ("none", "linear", "longrope"):
        raise f.fail(f.name("rope.scaling.type"), f"{kind!r:.40} is not supported; known: none, linear, yarn, longrope")
    return {"rope_type": "linear", "factor": factor} if kind == "linear" and factor != 1 else None


def _divided(short: list[float], long: list[float], attention: float, original: int) -> Config:
    """A divisor for each pair's frequency; the long ones apply to contexts beyond the original length."""
    return {
        "rope_type": "longrope",
        "short_factor": short,
        "long_factor": long,
        "attention_factor": attention,
        "original_max_position_embeddings": original,
    }


def _yarn(f: GgufFacts, factor: float, original: int, attention: float, alike: bool) -> Config:
    multiplier = f.number("rope.scaling.yarn_log_multiplier", 0.0)
    if multiplier and not alike:
        raise f.fail(f.name("rope.scaling.yarn_log_multiplier"), "is set, which is not supported")
    scale = {"attention_factor": attention * (1.0 + 0.1 * math.log(factor) if factor > 1 else 1.0)}
    if multiplier:
        scale = dict.fromkeys(("mscale", "mscale_all_dim"), 10 * multiplier)
    return scale | {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": original,
        "beta_fast": f.number("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": f.number("rope.scaling.yarn_beta_slow", 1.0),
    }


def _vector(f: GgufFacts, tensor: str) -> list[float]:
    if tensor not in f.file.tensors:
        raise f.fail(tensor, "is missing: no such tensor")
    stored = f.file.tensors[tensor]
    values = stored.values(tensor, 0, (math.prod(stored.shape),)) if len(stored.shape) == 1 else np.zeros(0)
    if not len(values) or not np.isfinite(values).all() or (values <= 0).any():
        raise f.fail(tensor, "must be a list of positive numbers")
    return [float(value) for value in values]
