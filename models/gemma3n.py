"""Gemma 3n as published: the text model inside; the towers of images and sounds are not exported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Source, gemma3n_text
from edgedec.models._inside import text_spec
from edgedec.spec import ModelSpec

INNER = "model.language_model."
FACTS = ArchitectureFacts(
    (
        *(name.replace(r"model\.", r"model\.language_model\.") for name in gemma3n_text.FACTS.ignored),
        r"model\.(vision_tower|audio_tower|embed_vision|embed_audio)\..*",
    )
)
_OTHER = ("vision_config", "audio_config", "vision_soft_tokens_per_image", "audio_soft_tokens_per_image")


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    return text_spec(gemma3n_text.spec, config, context, _OTHER, model_type="gemma3n_text", tied=True)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return gemma3n_text.text_weights(spec, config.get("text_config") or {}, INNER)
