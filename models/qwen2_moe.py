"""Qwen1.5-MoE and Qwen2-MoE: Qwen2 with many small experts, and one that every row passes, by a gate of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, either, finish, heads, sizes, sliding, windows
from edgedec.models._names import ATTENTION, EXPERTS, MLP, Names, named
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.models.qwen3_moe import sparse
from edgedec.spec import Attention, Mlp, ModelSpec, Moe

FACTS = ArchitectureFacts(IGNORED)
NAMES: Names = {
    "attention": ATTENTION,
    "mlp": MLP,
    "moe": EXPERTS
    | {
        "shared_gate_up": ("mlp.shared_expert.gate_proj.weight", "mlp.shared_expert.up_proj.weight"),
        "shared_down": ("mlp.shared_expert.down_proj.weight",),
        "shared_gate": ("mlp.shared_expert_gate.weight",),
    },
}


def every_other_window(r: ConfigReader, context: int) -> list[int | None]:
    """The window of every layer: if switched on, of every other one of the first `max_window_layers`."""
    window = r.maybe_whole("sliding_window", 4096, least=0)  # transformers writes 0 where it is switched off
    window = window if r.flag("use_sliding_window", False) else None
    first = r.whole("max_window_layers", 28, least=0)
    pattern = [window is not None and i % 2 == 0 and i < first for i in range(r.whole("num_hidden_layers"))]
    return windows(r, sliding(r, pattern), window, context)


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    table = rope_table(r)
    length = context_length(r, table, context)
    attention = Attention(**heads(r, kv_heads=16), qkv_bias=r.flag("qkv_bias", True))
    mlp = Mlp(r.whole("intermediate_size"), activation=activation(r))
    moe = Moe(
        n_experts=r.whole(either(r, "num_experts", "num_local_experts")),
        top_k=r.whole("num_experts_per_tok"),
        inner_size=r.whole("moe_intermediate_size"),
        normalize=r.flag("norm_topk_prob", False),
        shared_size=r.whole("shared_expert_intermediate_size"),
        shared_gate=True,
        activation=activation(r),
    )
    kinds = zip(every_other_window(r, length), sparse(r), strict=True)
    found = ModelSpec(
        **sizes(r, tied=False),
        context_length=length,
        layers=tuple((replace(attention, window=w), moe if experts else mlp) for w, experts in kinds),
        ropes=(rope(r, table, attention.head_dim, length),),
    )
    return finish(r, found)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, NAMES)
