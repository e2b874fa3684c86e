"""Qwen 3.5 to 3.8 as published: the text model inside; the vision tower and the head for drafts are not exported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Source, qwen3_5_text
from edgedec.models._inside import text_spec
from edgedec.models._names import OUTER, named
from edgedec.spec import ModelSpec

INNER = "model.language_model."
FACTS = ArchitectureFacts((r"model\.visual\..*", r"mtp\..*", r"lm_head\.weight"))
_OUTER = {name: path.replace("model.", INNER, 1) for name, path in OUTER.items()}
OTHERS = ("vision_config", "language_model_only")


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    return text_spec(qwen3_5_text.spec, config, context, OTHERS, model_type="qwen3_5_text", tied=False)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, qwen3_5_text.names(spec), outer=_OUTER, layers=f"{INNER}layers.", norm_add=1.0)
