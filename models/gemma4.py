"""Gemma 4 as published: the text model inside; the towers of images and sounds are not exported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Source, gemma4_text
from edgedec.models._inside import text_spec
from edgedec.spec import ModelSpec

INNER = "model.language_model."
FACTS = ArchitectureFacts(
    (
        *(name.replace(r"model\.", r"model\.language_model\.") for name in gemma4_text.FACTS.ignored),
        r"model\.(vision_tower|audio_tower|embed_vision|embed_audio)\..*",
    )
)
_OTHER = ("vision_config", "audio_config", "vision_soft_tokens_per_image")


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    return text_spec(gemma4_text.spec, config, context, _OTHER, model_type="gemma4_text", tied=True)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return gemma4_text.text_weights(spec, INNER)
