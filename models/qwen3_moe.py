"""Qwen3 with mixtures of experts: on every layer, on every so many, or on all but those named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, either, finish, heads, sizes, windows
from edgedec.models._names import named
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.spec import Attention, Mlp, ModelSpec, Moe

FACTS = ArchitectureFacts(IGNORED)


def sparse(r: ConfigReader) -> list[bool]:
    """Which layers have experts."""
    every, dense = r.whole("decoder_sparse_step", 1), r.items("mlp_only_layers", int) or []
    return [i not in dense and (i + 1) % every == 0 for i in range(r.whole("num_hidden_layers"))]


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    table = rope_table(r)
    length = context_length(r, table, context)
    r.value("max_window_layers", None)  # a leftover of Qwen2: one window for all layers
    window = r.maybe_whole("sliding_window", 4096)
    window = window if r.flag("use_sliding_window", False) else None
    spans = windows(r, [window is not None] * r.whole("num_hidden_layers"), window, length)
    bias = r.flag("attention_bias", False)
    attention = Attention(**heads(r, kv_heads=4), qk_norm="head", qkv_bias=bias, o_bias=bias)
    mlp = Mlp(r.whole("intermediate_size"), activation=activation(r))
    moe = Moe(
        n_experts=r.whole(either(r, "num_experts", "num_local_experts")),
        top_k=r.whole("num_experts_per_tok"),
        inner_size=r.whole("moe_intermediate_size"),
        normalize=r.flag("norm_topk_prob", False),
        activation=activation(r),
    )
    kinds = zip(spans, sparse(r), strict=True)
    found = ModelSpec(
        **sizes(r, tied=False),
        context_length=length,
        layers=tuple((replace(attention, window=w), moe if experts else mlp) for w, experts in kinds),
        ropes=(rope(r, table, attention.head_dim, length),),
    )
    return finish(r, found)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec)
