"""Encoders of BERT's shape with rotary positions: Nomic, GTE v1.5, Jina v3."""

from __future__ import annotations

from dataclasses import dataclass, replace

from edgedec.models import _encoders as e
from edgedec.models._common import ConfigReader, activation, finish
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.spec import Attention, Dense, Mlp, ModelSpec, Output


@dataclass(frozen=True)
class RopeEncoderShape:
    """What differs among them. theta: of the rope where the config has none; biases: of qkv and o, of the first matrix
    of the feed-forward and of its last; scores: the class of classifiers, dense_scores: whether these have a layer
    first."""

    theta: float
    gated: bool
    act: str
    attention_bias: bool
    up_bias: bool
    down_bias: bool
    scores: str
    dense_scores: bool = True
    types: int = 1
    eps: float = 1e-12


def rope_encoder(r: ConfigReader, context: int | None, shape: RopeEncoderShape) -> ModelSpec:
    table = rope_table(r, shape.theta)
    length, heads, hidden = context_length(r, table, context), r.whole("num_attention_heads"), r.whole("hidden_size")
    dim = r.maybe_whole("head_dim") or hidden // heads
    attention = Attention(
        *(heads, heads, dim, dim**-0.5),
        qkv_bias=shape.attention_bias,
        o_bias=shape.attention_bias,
        norm="none",
        after="layer",
    )
    mlp = Mlp(
        r.whole("intermediate_size"),
        gated=shape.gated,
        activation=activation(r, "hidden_act", shape.act),
        bias=shape.up_bias or shape.down_bias,
        norm="none",
        after="layer",
    )
    first = (Dense(hidden, True, "tanh"),) if shape.dense_scores else ()
    common = e.bert_sizes(r)
    found = ModelSpec(
        **{**common, "norm_eps": r.number("layer_norm_eps", shape.eps)},  # type: ignore[arg-type]
        context_length=length,
        layers=((attention, mlp),) * r.whole("num_hidden_layers"),
        ropes=(rope(r, table, dim, length),),
        final_norm="none",
        entry=replace(e.entry(r, 0, types=r.whole("type_vocab_size", shape.types, least=0)), positions=0),
        output=e.score(r, "cls", *first) if e.is_score(r, shape.scores) else Output(),
    )
    return finish(r, found)
