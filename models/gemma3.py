"""Gemma 3, multimodal: the text model inside it; the vision tower is not exported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Source, gemma3_text
from edgedec.models._inside import text_spec
from edgedec.models._names import named
from edgedec.models.gemma2 import GEMMA
from edgedec.spec import ModelSpec

PREFIX = "language_model."
FACTS = ArchitectureFacts(
    (
        *(r"language_model\." + name for name in gemma3_text.FACTS.ignored),
        r"vision_tower\..*",
        r"multi_modal_projector\..*",
    )
)
_OTHER = ("vision_config", "mm_tokens_per_image")


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    return text_spec(gemma3_text.spec, config, context, _OTHER, model_type="gemma3_text", tied=True)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, GEMMA, prefix=PREFIX, norm_add=1.0)
