"""LFM2 with mixtures of experts in all but the first layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader, finish, heads
from edgedec.models._names import Names, named
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.models.lfm2 import LFM2, LFM2_OUTER, attends, lfm_sizes, short_conv
from edgedec.spec import Attention, Mlp, ModelSpec, Moe

FACTS = ArchitectureFacts(IGNORED)
LFM2_MOE: Names = {
    **LFM2,
    "moe": {
        "norm": ("ffn_norm.weight",),
        "router": ("feed_forward.gate.weight",),
        "router_bias": ("feed_forward.expert_bias",),
        "gate_up": ("feed_forward.experts.*.w1.weight", "feed_forward.experts.*.w3.weight"),
        "down": ("feed_forward.experts.*.w2.weight",),
    },
}


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    table = rope_table(r, 1e6)
    length = context_length(r, table, context)
    kinds, conv, dense = attends(r), short_conv(r), r.whole("num_dense_layers", 2, least=0)
    attention = Attention(**heads(r, kv_heads=8), qk_norm="head")
    mlp = Mlp(r.whole("intermediate_size"))
    moe = Moe(
        n_experts=r.whole("num_experts"),
        top_k=r.whole("num_experts_per_tok"),
        inner_size=r.whole("moe_intermediate_size"),
        router="sigmoid",
        normalize=r.flag("norm_topk_prob", True),
        scale=r.number("routed_scaling_factor", 1.0),
        router_bias=r.flag("use_expert_bias", True),
    )
    found = ModelSpec(
        **lfm_sizes(r),
        context_length=length,
        layers=tuple((attention if on else conv, mlp if i < dense else moe) for i, on in enumerate(kinds)),
        ropes=(rope(r, table, attention.head_dim, length),),
    )
    return finish(r, found)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, LFM2_MOE, outer=LFM2_OUTER)
