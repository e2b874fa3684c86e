"""Jina Embeddings v2 and rerankers v1: BERT with ALiBi on both sides instead of positions and a gated feed-forward.

Their configs have BERT's `model_type`. After the authors' two modeling files: jina-bert-implementation, and
jina-bert-v2-qk-post-norm (jina-embeddings-v2-base-code), which norms queries and keys, adds the state that attention
reads twice, and has the gates below the ups. Its tensors show which of them a checkpoint is of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgedec.models import ArchitectureFacts, Part, Source
from edgedec.models import _encoders as e
from edgedec.models._common import ConfigReader, finish
from edgedec.models._dense import alibi
from edgedec.spec import Activation, Attention, Dense, EncoderEntry, Mlp, ModelSpec, Output

# The config's entry for the second file, which nobody writes: this tensor shows it.
NORMED = "qk_post_norm"
SHOWS = "encoder.layer.0.attention.self.layer_norm_q.weight"
FACTS = ArchitectureFacts(e.IGNORED, prefixes=("bert.",), encodes=True, shown=((SHOWS, NORMED),))
SCORES = "JinaBertForSequenceClassification"
GATED: dict[str, Activation] = {"geglu": "gelu", "reglu": "relu"}
UNUSED = ("model_max_length", "emb_pooler")
GATED_MLP: e.Places = {
    "gate_up": ("mlp.gated_layers.weight",),
    "down": ("mlp.wo.weight",),
    "down_bias": ("mlp.wo.bias",),
    "after_norm": ("mlp.layernorm.weight",),
    "after_norm_bias": ("mlp.layernorm.bias",),
}
NORMED_ATTENTION: e.Places = {
    f"{ours}{end}": (f"{theirs}.{kind}",)
    for ours, theirs in (
        ("q_norm", "attention.self.layer_norm_q"),
        ("k_norm", "attention.self.layer_norm_k"),
        ("again_norm", "layer_norm_1"),
    )
    for end, kind in (("", "weight"), ("_bias", "bias"))
}


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader({key: value for key, value in config.items() if key not in UNUSED})
    length, hidden = e.positions(r, context), r.whole("hidden_size")
    attention, mlp = _layer(r, r.flag(NORMED, False))
    found = ModelSpec(
        **{**e.bert_sizes(r, positions="alibi"), "architecture": "jina_bert_v2"},  # type: ignore[arg-type]
        context_length=length,
        layers=((attention, mlp),) * r.whole("num_hidden_layers"),
        final_norm="none",
        entry=EncoderEntry(types=r.whole("type_vocab_size", 2), norm="layer"),
        output=e.score(r, "cls", Dense(hidden, True, "tanh")) if e.is_score(r, SCORES) else Output(),
    )
    return finish(r, found)


def _layer(r: ConfigReader, normed: bool) -> tuple[Attention, Mlp]:
    attention, mlp = e.bert_layer(r)
    attention = replace(attention, slopes=alibi(attention.n_heads))
    if normed:
        attention = replace(attention, qk_norm="full", qk_norm_kind="layer", again="layer")
    kind = r.text("feed_forward_type", "geglu" if normed else "original")
    if kind == "original" and not normed:
        return attention, mlp
    if kind not in GATED:
        raise r.fail("feed_forward_type", f"{kind!r:.40} is not supported; known: {', '.join(GATED)}")
    return attention, replace(mlp, gated=True, activation=GATED[kind])


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    outer = e.embeddings(0) | e.heads_of("pooler.dense", "classifier")
    mlp, normed = spec.layers[0][1], bool(config.get(NORMED))
    assert isinstance(mlp, Mlp)
    attention = {**e.BERT_ATTENTION, **NORMED_ATTENTION}
    places = _feed_forward(mlp, normed, spec.hidden_size) if mlp.gated else e.BERT_MLP
    return e.placed(spec, "encoder.layer.", attention, places, outer)


def _feed_forward(mlp: Mlp, normed: bool, hidden: int) -> e.Places:
    inner, norm = mlp.inner_size, "layer_norm_2" if normed else "mlp.layernorm"
    zeros: e.Places = {"gate_up_bias": e.many_zeros(f"{norm}.weight", hidden, 2 * inner)}
    if not normed:
        return {**GATED_MLP, **zeros}
    return {
        "gate_up": tuple(Part("mlp.up_gated_layer.weight", (at, at + inner)) for at in (inner, 0)),
        "down": ("mlp.down_layer.weight",),
        "down_bias": ("mlp.down_layer.bias",),
        "after_norm": (f"{norm}.weight",),
        "after_norm_bias": (f"{norm}.bias",),
        **zeros,
    }
