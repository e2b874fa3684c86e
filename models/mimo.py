"""MiMo (7B): Qwen2 with an extra layer that predicts one token further, used as a draft (models/drafts/mtp.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Source, qwen2
from edgedec.models._common import ConfigReader
from edgedec.spec import ModelSpec

FACTS = ArchitectureFacts((*qwen2.FACTS.ignored, r"model\.mtp_layers\..*"))


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    if not r.flag("attention_bias", True):
        raise r.fail("attention_bias", "is false: MiMo's queries, keys and values have biases")
    return qwen2.spec({key: value for key, value in config.items() if key != "attention_bias"}, context)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return qwen2.weights(spec, config)
