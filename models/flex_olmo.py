"""FlexOlmo: OLMoE with norms only after each block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, either, finish, heads, sizes
from edgedec.models._names import EXPERTS, Names, named
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.models.olmo2 import OLMO
from edgedec.spec import Attention, ModelSpec, Moe

FACTS = ArchitectureFacts(IGNORED)
NAMES: Names = {
    "attention": OLMO["attention"],
    "moe": EXPERTS | {"post_norm": ("post_feedforward_layernorm.weight",)},
}


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    table = rope_table(r, 5e5)
    length = context_length(r, table, context)
    bias = r.flag("attention_bias", False)
    attention = Attention(**heads(r), qk_norm="full", qkv_bias=bias, o_bias=bias, norm="none", post_norm="rms")
    moe = Moe(
        n_experts=r.whole(either(r, "num_experts", "num_local_experts")),
        top_k=r.whole("num_experts_per_tok"),
        inner_size=r.whole("intermediate_size"),
        normalize=r.flag("norm_topk_prob", False),
        activation=activation(r),
        norm="none",
        post_norm="rms",
    )
    found = ModelSpec(
        **sizes(r, tied=False),
        context_length=length,
        layers=((attention, moe),) * r.whole("num_hidden_layers"),
        ropes=(rope(r, table, attention.head_dim, length),),
    )
    return finish(r, found)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, NAMES)
