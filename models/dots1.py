"""dots.llm1: the attention of Qwen3 and the experts of DeepSeek-V3, windows from some layer on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader, finish, heads, sizes, sliding, windows
from edgedec.models._experts import DEEPSEEK, deepseek_experts, dense_first
from edgedec.models._names import named
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.spec import Attention, Mlp, ModelSpec

FACTS = ArchitectureFacts(IGNORED)


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    table = rope_table(r)
    length = context_length(r, table, context)
    window, first = r.maybe_whole("sliding_window", 4096), r.whole("max_window_layers", 62, least=0)
    pattern = [window is not None and i >= first for i in range(r.whole("num_hidden_layers"))]
    spans = windows(r, sliding(r, pattern), window, length)
    bias = r.flag("attention_bias", False)
    attention = Attention(**heads(r, kv_heads=32), qk_norm="head", qkv_bias=bias, o_bias=bias)
    moe = deepseek_experts(r, normalize=False)
    mlp = Mlp(r.whole("intermediate_size"), activation=moe.activation)
    kinds = zip(spans, dense_first(r, 0), strict=True)
    found = ModelSpec(
        **sizes(r, tied=False),
        context_length=length,
        layers=tuple((replace(attention, window=w), moe if experts else mlp) for w, experts in kinds),
        ropes=(rope(r, table, attention.head_dim, length),),
    )
    return finish(r, found)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, DEEPSEEK)
