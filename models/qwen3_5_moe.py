"""Qwen 3.5 to 3.8 with mixtures of experts, as published: the text model inside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import Source, qwen3_5, qwen3_5_moe_text
from edgedec.models._inside import text_spec
from edgedec.spec import ModelSpec

FACTS = qwen3_5.FACTS


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    inner = qwen3_5_moe_text
    return text_spec(inner.spec, config, context, qwen3_5.OTHERS, model_type="qwen3_5_moe_text", tied=False)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return qwen3_5.weights(spec, config)
