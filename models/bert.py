"""BERT, and what copies it: MiniLM, E5, BGE, GTE, ms-marco's rerankers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models import _encoders as e
from edgedec.models._common import ConfigReader, finish
from edgedec.spec import Dense, ModelSpec, Output

FACTS = ArchitectureFacts(e.IGNORED, prefixes=("bert.",), encodes=True, terms=e.TERMS)
SCORES = "BertForSequenceClassification"


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    for unused in ("fc_size", "num_attention_heads", "num_fc_layers", "size_per_head", "type"):
        r.value(f"pooler_{unused}", None)
    r.value("directionality", None)
    return bert(r, context, SCORES, "tanh")


def bert(r: ConfigReader, context: int | None, scores: str, first: Any, width: int = 0) -> ModelSpec:
    """scores, first: the class of its classifiers, and the activation of their first layer."""
    length, common = e.positions(r, context), e.bert_sizes(r)
    hidden = common["hidden_size"]
    found = ModelSpec(
        **common,
        context_length=length,
        layers=(e.bert_layer(r),) * r.whole("num_hidden_layers"),
        final_norm="none",
        entry=e.entry(r, length, types=r.whole("type_vocab_size", 2), width=width),
        output=e.score(r, "cls", Dense(hidden, True, first)) if e.is_score(r, scores) else Output(),
    )
    return finish(r, found)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    outer = e.embeddings(spec.context_length) | e.heads_of("pooler.dense", "classifier")
    return e.placed(spec, "encoder.layer.", e.BERT_ATTENTION, e.BERT_MLP, outer)
