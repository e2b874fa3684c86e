"""CamemBERT: RoBERTa with another vocabulary (French)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, roberta
from edgedec.models import _encoders as e
from edgedec.spec import ModelSpec

FACTS = ArchitectureFacts(e.IGNORED, prefixes=("roberta.",), encodes=True)
SCORES = "CamembertForSequenceClassification"
weights = roberta.weights


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    return roberta.roberta(config, context, SCORES)
