"""Llama 2 and 3.x, and what copies it: SmolLM, SmolLM2, TinyLlama."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, finish, heads, sizes
from edgedec.models._encoders import last_token_score
from edgedec.models._names import named
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.spec import Attention, Mlp, ModelSpec

FACTS = ArchitectureFacts(IGNORED)


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    table = rope_table(r)
    length = context_length(r, table, context)
    bias, mlp_bias = r.flag("attention_bias", False), r.flag("mlp_bias", False)
    attention = Attention(**heads(r), qkv_bias=bias, o_bias=bias)
    mlp = Mlp(r.whole("intermediate_size"), bias=mlp_bias, activation=activation(r))
    found = ModelSpec(
        **sizes(r, tied=False),
        context_length=length,
        layers=((attention, mlp),) * r.whole("num_hidden_layers"),
        ropes=(rope(r, table, attention.head_dim, length),),
        output=last_token_score(r, "LlamaForSequenceClassification"),
    )
    return finish(r, found)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec)
