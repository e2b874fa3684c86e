"""The text model inside a multimodal one, which is what is exported of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from edgedec.models._common import ConfigReader
from edgedec.spec import ModelSpec

Config = Mapping[str, Any]


def text_spec(
    inner: Callable[[Config, int | None], ModelSpec], config: Config, context: int | None, others: Sequence[str],
    *, model_type: str, tied: bool,
) -> ModelSpec:  # fmt: skip
    """The spec of text_config; others are the keys beside it of parts that are not exported."""
    r = ConfigReader(config)
    for other in others:
        r.value(other, None)
    text, tied = r.table("text_config"), r.flag("tie_word_embeddings", tied)
    if text.get("tie_word_embeddings", tied) != tied:
        raise r.fail("tie_word_embeddings", "differs from that of text_config: make them equal")
    name = r.text("model_type")
    r.done()
    return replace(inner({"model_type": model_type, **text, "tie_word_embeddings": tied}, context), architecture=name)
