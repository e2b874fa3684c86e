"""GLM-4.5 to 4.7: DeepSeek's experts after the first layers, a half of each head turned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader, finish, heads, sizes
from edgedec.models._experts import DEEPSEEK, deepseek_experts, dense_first
from edgedec.models._names import named
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.spec import Attention, Mlp, ModelSpec

FACTS = ArchitectureFacts(IGNORED)


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader({"partial_rotary_factor": 0.5} | dict(config))
    table = rope_table(r, partial=True)
    length = context_length(r, table, context)
    attention = Attention(
        **heads(r, kv_heads=8),
        qk_norm="head" if r.flag("use_qk_norm", False) else "none",
        qkv_bias=r.flag("attention_bias", False),
    )
    moe = deepseek_experts(r)
    mlp = Mlp(r.whole("intermediate_size"), activation=moe.activation)
    found = ModelSpec(
        **sizes(r, tied=False, eps=1e-5),
        context_length=length,
        layers=tuple((attention, moe if experts else mlp) for experts in dense_first(r, 1)),
        ropes=(rope(r, table, attention.head_dim, length),),
    )
    return finish(r, found)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, DEEPSEEK)
