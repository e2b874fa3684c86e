"""Qwen3 (dense): Qwen2 with norms on every head of q and k in place of the biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import Source
from edgedec.models._common import IGNORED, Reader, activation, finish, named, sizes
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.models.qwen2 import qwen_windows
from edgedec.spec import Layer, ModelSpec

ignored = IGNORED


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = Reader(config)
    common, table = sizes(r, tied=False, kv_heads=32, head_dim=128), rope_table(r)
    length = context_length(r, table, context)
    bias = r.flag("attention_bias", False)
    found = ModelSpec(
        **common,
        context_length=length,
        layers=tuple(Layer(window=w) for w in qwen_windows(r, length)),
        ropes=(rope(r, table, common["head_dim"], length),),
        qk_norm="head",
        qkv_bias=bias,
        o_bias=bias,
        activation=activation(r),
    )
    return finish(r, found)


def weights(spec: ModelSpec) -> dict[str, Source]:
    return named(spec)
