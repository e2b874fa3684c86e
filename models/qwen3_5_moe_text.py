"""Qwen 3.5 to 3.8 with mixtures of experts, the text model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import Source, qwen3_5_text
from edgedec.spec import ModelSpec

FACTS = qwen3_5_text.FACTS


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    return qwen3_5_text.spec_with(config, context, qwen3_5_text.experts, 2)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return qwen3_5_text.weights(spec, config)
