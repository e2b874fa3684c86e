"""Qwen 3.5 to 3.8 as published: the text model inside; the vision tower and the head for drafts are not exported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgedec.models import ArchitectureFacts, Source, qwen3_5_text
from edgedec.models._common import ConfigReader
from edgedec.models._names import OUTER, named
from edgedec.spec import ModelSpec

INNER = "model.language_model."
FACTS = ArchitectureFacts((r"model\.visual\..*", r"mtp\..*", r"lm_head\.weight"))
_OUTER = {name: path.replace("model.", INNER, 1) for name, path in OUTER.items()}


def text_config(config: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    """The config of the text model inside, its other parts read."""
    r = ConfigReader(config)
    for other in ("vision_config", "language_model_only"):
        r.value(other, None)
    text, tied = r.table("text_config"), r.flag("tie_word_embeddings", False)
    if text.get("tie_word_embeddings", tied) != tied:
        raise r.fail("tie_word_embeddings", "differs from that of text_config: make them equal")
    r.text("model_type")
    r.done()
    return {"model_type": model_type, **text, "tie_word_embeddings": tied}


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    inner = qwen3_5_text.spec(text_config(config, "qwen3_5_text"), context)
    return replace(inner, architecture=ConfigReader(config).text("model_type"))


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, qwen3_5_text.names(spec), outer=_OUTER, layers=f"{INNER}layers.", norm_add=1.0)
