"""Mixtral: Mistral in which every MLP is a mixture of experts; the weights of the chosen sum to 1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, finish, heads, sizes, windows
from edgedec.models._names import ATTENTION, EXPERTS, Names, named
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.spec import Attention, ModelSpec, Moe

FACTS = ArchitectureFacts(IGNORED)
MIXTRAL: Names = {
    "attention": ATTENTION,
    "moe": EXPERTS
    | {
        "router": ("block_sparse_moe.gate.weight",),
        "gate_up": ("block_sparse_moe.experts.*.w1.weight", "block_sparse_moe.experts.*.w3.weight"),
        "down": ("block_sparse_moe.experts.*.w2.weight",),
    },
}


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    table = rope_table(r, 1e6)
    length = context_length(r, table, context)
    window = r.maybe_whole("sliding_window")
    slides = [window is not None] * r.whole("num_hidden_layers")
    attention = Attention(**heads(r, kv_heads=8))
    moe = Moe(
        n_experts=r.whole("num_local_experts"),
        top_k=r.whole("num_experts_per_tok"),
        inner_size=r.whole("intermediate_size"),
        activation=activation(r),
    )
    found = ModelSpec(
        **sizes(r, tied=False, eps=1e-5),
        context_length=length,
        layers=tuple((replace(attention, window=w), moe) for w in windows(r, slides, window, length)),
        ropes=(rope(r, table, attention.head_dim, length),),
    )
    return finish(r, found)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, MIXTRAL)
