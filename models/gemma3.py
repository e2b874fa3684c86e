"""Gemma 3, multimodal: the text model inside it; the vision tower is not exported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgedec.models import ArchitectureFacts, Source, gemma3_text
from edgedec.models._common import ConfigReader
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


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    r.value("vision_config", None)
    r.value("mm_tokens_per_image", None)
    text = r.table("text_config")
    tied = r.flag("tie_word_embeddings", True)
    if text.get("tie_word_embeddings", tied) != tied:
        raise r.fail("tie_word_embeddings", "differs from that of text_config: make them equal")
    r.done()
    inner = gemma3_text.spec({"model_type": "gemma3_text", **text, "tie_word_embeddings": tied}, context)
    return replace(inner, architecture=r.text("model_type"))


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, GEMMA, prefix=PREFIX, norm_add=1.0)
