"""Qwen3 (dense): Qwen2 with norms on every head of q and k in place of the biases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, finish, heads, sizes
from edgedec.models._encoders import last_token_score
from edgedec.models._names import named
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.models.qwen2 import qwen_windows
from edgedec.spec import Attention, Mlp, ModelSpec

FACTS = ArchitectureFacts(IGNORED)


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    table = rope_table(r)
    length = context_length(r, table, context)
    bias = r.flag("attention_bias", False)
    attention = Attention(**heads(r, kv_heads=32, head_dim=128), qk_norm="head", qkv_bias=bias, o_bias=bias)
    mlp = Mlp(r.whole("intermediate_size"), activation=activation(r))
    found = ModelSpec(
        **sizes(r, tied=False),
        context_length=length,
        layers=tuple((replace(attention, window=w), mlp) for w in qwen_windows(r, length)),
        ropes=(rope(r, table, attention.head_dim, length),),
        output=last_token_score(r, "Qwen3ForSequenceClassification"),
    )
    return finish(r, found)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec)
