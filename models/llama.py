"""Llama 2 and 3.x, and what copies it: SmolLM, SmolLM2, TinyLlama."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import Source
from edgedec.models._common import IGNORED, Reader, activation, finish, named, sizes
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.spec import Layer, ModelSpec

ignored = IGNORED


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = Reader(config)
    common, table = sizes(r, tied=False), rope_table(r)
    length = context_length(r, table, context)
    bias, mlp_bias = r.flag("attention_bias", False), r.flag("mlp_bias", False)
    found = ModelSpec(
        **common,
        context_length=length,
        layers=(Layer(),) * r.whole("num_hidden_layers"),
        ropes=(rope(r, table, common["head_dim"], length),),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=mlp_bias,
        activation=activation(r),
    )
    return finish(r, found)


def weights(spec: ModelSpec) -> dict[str, Source]:
    return named(spec)
