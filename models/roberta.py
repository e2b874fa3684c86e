"""RoBERTa: BERT whose positions are counted after the padding token's number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models import _encoders as e
from edgedec.models._common import ConfigReader, finish
from edgedec.spec import Dense, ModelSpec, Output

FACTS = ArchitectureFacts(e.IGNORED, prefixes=("roberta.",), encodes=True)
SCORES = "RobertaForSequenceClassification"


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    return roberta(config, context, SCORES)


def offset(r: ConfigReader) -> int:
    """The rows of the table of positions before that of the first token."""
    return r.whole("pad_token_id", 1, least=0) + 1


def roberta(config: Mapping[str, Any], context: int | None, scores: str) -> ModelSpec:
    """scores: the class of its classifiers."""
    r = ConfigReader(config)
    length, common = e.positions(r, context, offset(r)), e.bert_sizes(r)
    first = Dense(common["hidden_size"], True, "tanh")
    found = ModelSpec(
        **common,
        context_length=length,
        layers=(e.bert_layer(r),) * r.whole("num_hidden_layers"),
        final_norm="none",
        entry=e.entry(r, length, types=r.whole("type_vocab_size", 2)),
        output=e.score(r, "cls", first) if e.is_score(r, scores) else Output(),
    )
    return finish(r, found)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    outer = e.embeddings(spec.context_length, offset(ConfigReader(config)))
    outer |= e.heads_of("classifier.dense", "classifier.out_proj")
    return e.placed(spec, "encoder.layer.", e.BERT_ATTENTION, e.BERT_MLP, outer)
