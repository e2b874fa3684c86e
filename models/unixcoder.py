"""UniXcoder: RoBERTa whose mode token chooses the mask, of an encoder, a decoder or both in turn (arXiv:2203.03850).

Rests on the authors' code (microsoft/CodeBERT). Published configs have the type `roberta`; the mode tokens of the
vocabulary tell them apart (`export/modes.py`). The head is the embedding, without a layer before it and without a bias.
All tokens are of type 0, so its row is added to the positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models import _encoders as e
from edgedec.models._common import ConfigReader, finish
from edgedec.models.roberta import offset
from edgedec.spec import EncoderEntry, ModelSpec

_PLACES = ("encoder.layer", *(f"embeddings.{part}" for part in ("word", "position", "token_type", "LayerNorm")))
# A pooler is of no mode, and a head that is stored must be the embedding.
FACTS = ArchitectureFacts(
    (r"(\w+\.)?embeddings\.position_ids", r"(\w+\.)?pooler\..*", r"lm_head\.weight"),
    renames=tuple((place, f"roberta.{place}") for place in _PLACES),
)


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader({**config, "is_decoder": False})  # the authors' code sets it, for transformers' cache
    length, common = e.positions(r, context, offset(r)), e.bert_sizes(r)
    r.whole("type_vocab_size", 2)
    common["causal"] = True
    found = ModelSpec(
        **common,
        context_length=length,
        layers=(e.bert_layer(r),) * r.whole("num_hidden_layers"),
        final_norm="none",
        entry=EncoderEntry(length, norm="layer"),
    )
    return finish(r, found)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    outer = e.embeddings(spec.context_length, offset(ConfigReader(config)))
    (table,), (types,) = outer["positions"], outer["types"]
    outer["positions"] = (replace(table, each=types.name),)
    return e.placed(spec, "encoder.layer.", e.BERT_ATTENTION, e.BERT_MLP, outer)
