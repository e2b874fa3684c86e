"""SDAR with experts (30B-A3B): Qwen3-MoE decoded as SDAR."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import Source, qwen3_moe, sdar
from edgedec.models._diffusion import base_config
from edgedec.spec import ModelSpec

FACTS = sdar.FACTS


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    return qwen3_moe.spec(base_config(config, *sdar.TRAINING), context)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return qwen3_moe.weights(spec, config)
