"""Qwen 3.5 to 3.8 with mixtures of experts, as published: the text model inside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgedec.models import Source, qwen3_5, qwen3_5_moe_text
from edgedec.models._common import ConfigReader
from edgedec.spec import ModelSpec

FACTS = qwen3_5.FACTS


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    inner = qwen3_5_moe_text.spec(qwen3_5.text_config(config, "qwen3_5_moe_text"), context)
    return replace(inner, architecture=ConfigReader(config).text("model_type"))


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return qwen3_5.weights(spec, config)
