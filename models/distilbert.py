"""DistilBERT: BERT without token types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models import _encoders as e
from edgedec.models._common import ConfigReader, activation, finish
from edgedec.spec import Dense, ModelSpec, Output

TERMS = ("vocab_transform", "vocab_layer_norm", "vocab_projector.bias")
FACTS = ArchitectureFacts(e.IGNORED, prefixes=("distilbert.",), encodes=True, terms=TERMS)
SCORES = "DistilBertForSequenceClassification"
ATTENTION: e.Places = {
    **{
        f"qkv{end}": tuple(f"attention.{p}_lin.{kind}" for p in "qkv")
        for end, kind in (("", "weight"), ("_bias", "bias"))
    },
    "o": ("attention.out_lin.weight",),
    "o_bias": ("attention.out_lin.bias",),
    "after_norm": ("sa_layer_norm.weight",),
    "after_norm_bias": ("sa_layer_norm.bias",),
}
MLP: e.Places = {
    "up": ("ffn.lin1.weight",),
    "up_bias": ("ffn.lin1.bias",),
    "down": ("ffn.lin2.weight",),
    "down_bias": ("ffn.lin2.bias",),
    "after_norm": ("output_layer_norm.weight",),
    "after_norm_bias": ("output_layer_norm.bias",),
}


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    for unused in ("sinusoidal_pos_embds", "tie_weights_"):  # the table is stored either way
        r.value(unused, None)
    length, hidden, heads = e.positions(r, context), r.whole("dim"), r.whole("n_heads")
    if hidden % heads:
        raise r.fail("n_heads", f"{heads} do not share {hidden} values evenly")
    layer = e.post_norm(heads, hidden, r.whole("hidden_dim"), activation(r, "activation", "gelu"))
    found = ModelSpec(
        **e.bert_sizes(r, "dim", 1e-12),
        context_length=length,
        layers=(layer,) * r.whole("n_layers"),
        final_norm="none",
        entry=e.entry(r, length, types=0),
        output=e.score(r, "cls", Dense(hidden, True, "relu")) if e.is_score(r, SCORES) else Output(),
    )
    return finish(r, found)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    outer = e.embeddings(spec.context_length) | e.heads_of("pre_classifier", "classifier")
    return e.placed(spec, "transformer.layer.", ATTENTION, MLP, outer)
