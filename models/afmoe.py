"""AFMoE (Arcee Trinity): attention gated channel by channel, ropes on layers with windows alone, norms before and after
each block, and DeepSeek's choice of experts after the first layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import (
    IGNORED,
    ConfigReader,
    activation,
    finish,
    heads,
    require_usual,
    sizes,
    sliding,
    windows,
)
from edgedec.models._experts import SHARED
from edgedec.models._names import ATTENTION, EXPERTS, MLP, Names, Paths, named
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.spec import Attention, Mlp, ModelSpec, Moe

FACTS = ArchitectureFacts(IGNORED)
_NORMS: Paths = {"norm": ("pre_mlp_layernorm.weight",), "post_norm": ("post_mlp_layernorm.weight",)}
NAMES: Names = {
    "attention": ATTENTION
    | {
        "post_norm": ("post_attention_layernorm.weight",),
        "qkv": (*ATTENTION["qkv"], "self_attn.gate_proj.weight"),
    },
    "mlp": MLP | _NORMS,
    "moe": EXPERTS | SHARED | _NORMS | {"router": ("mlp.router.gate.weight",), "router_bias": ("mlp.expert_bias",)},
}
# What its own code reads and transformers does not.
FIXED: dict[str, Any] = {
    **{"route_norm": True, "score_func": "sigmoid", "attention_bias": False},
    **dict.fromkeys(("n_group", "topk_group", "num_expert_groups", "num_limited_groups"), 1),
}
UNUSED = ("load_balance_coeff", "use_grouped_mm")


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    require_usual(r, FIXED)
    for key in UNUSED:
        r.value(key, None)
    table = rope_table(r)
    length = context_length(r, table, context)
    n, every = r.whole("num_hidden_layers"), r.whole("global_attn_every_n_layers", 4)
    slides = sliding(r, [(i + 1) % every > 0 for i in range(n)])
    spans = windows(r, slides, r.maybe_whole("sliding_window", 1024), length)
    attention = Attention(**heads(r, head_dim=128), qk_norm="head", gate="channel", post_norm="rms")
    moe, dense = _experts(r), r.whole("num_dense_layers", 1, least=0)
    mlp = Mlp(r.whole("intermediate_size"), activation=moe.activation, post_norm="rms")
    turned = (replace(attention, window=w, rope=0 if on else None) for w, on in zip(spans, slides, strict=True))
    found = ModelSpec(
        **sizes(r, tied=False, eps=1e-5),
        context_length=length,
        layers=tuple((heads_, mlp if i < dense else moe) for i, heads_ in enumerate(turned)),
        ropes=(rope(r, table, attention.head_dim, length),),
        embed_scale=r.whole("hidden_size") ** 0.5 if r.flag("mup_enabled", False) else 1.0,
    )
    return finish(r, found)


def _experts(r: ConfigReader) -> Moe:
    inner = r.whole("moe_intermediate_size")
    return Moe(
        n_experts=r.whole("num_experts"),
        top_k=r.whole("num_experts_per_tok"),
        inner_size=inner,
        router="sigmoid",
        scale=r.number("route_scale", 1.0),
        router_bias=True,
        shared_size=inner * r.whole("num_shared_experts", 2, least=0),
        activation=activation(r),
        post_norm="rms",
    )


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, NAMES)
