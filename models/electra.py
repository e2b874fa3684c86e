"""ELECTRA: BERT with embeddings that may be narrower than the state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Part, Source
from edgedec.models import _encoders as e
from edgedec.models._common import ConfigReader
from edgedec.models.bert import bert
from edgedec.spec import ModelSpec

FACTS = ArchitectureFacts(e.IGNORED, prefixes=("electra.",), encodes=True)
SCORES = "ElectraForSequenceClassification"


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    for unused in ("summary_activation", "summary_last_dropout", "summary_type", "summary_use_proj"):
        r.value(unused, None)
    width = r.whole("embedding_size", 128)
    return bert(r, context, SCORES, "gelu", 0 if width == r.whole("hidden_size") else width)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    outer = e.embeddings(spec.context_length) | e.heads_of("classifier.dense", "classifier.out_proj")
    outer |= {"entry": (Part("embeddings_project.weight"),), "entry_bias": (Part("embeddings_project.bias"),)}
    return e.placed(spec, "encoder.layer.", e.BERT_ATTENTION, e.BERT_MLP, outer)
