"""Qwen 3.5 to 3.8, the text model: Qwen3-Next with dense MLPs, and its projections apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Part, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, finish, sizes
from edgedec.models._delta import (
    attends,
    delta,
    delta_block,
    delta_names,
    gated_attention,
    gated_names,
    text_ropes,
    turned,
)
from edgedec.models._names import EXPERTS, MLP, Names, named
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.models.qwen3_next import SHARED, qwen_experts
from edgedec.spec import Mlp, ModelSpec, Moe

FACTS = ArchitectureFacts((*IGNORED, r"mtp\..*"))


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    return spec_with(config, context, lambda r: Mlp(r.whole("intermediate_size"), activation=activation(r)), 4)


def experts(r: ConfigReader) -> Moe:
    """The experts of the types that have them; the weights of the chosen always sum to 1."""
    r.value("intermediate_size", None)  # a leftover: every layer has experts
    if not r.flag("norm_topk_prob", True):
        raise r.fail("norm_topk_prob", "is false, which transformers ignores: what is meant is not clear")
    return qwen_experts(r, normalize=True)


def spec_with(config: Mapping[str, Any], context: int | None, last: Any, kv_heads: int) -> ModelSpec:
    """The spec of a config. last: makes the second block of each layer from it; kv_heads: where it is silent."""
    r = ConfigReader(text_ropes(config))
    table = rope_table(r, partial=True)
    length = context_length(r, table, context)
    for leftover in ("mamba_ssm_dtype", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "mlp_only_layers"):
        r.value(leftover, None)
    attention, linear, second = gated_attention(r, kv_heads), delta(r), last(r)
    found = ModelSpec(
        **sizes(r, tied=False),
        context_length=length,
        layers=tuple((attention if on else linear, second) for on in attends(r)),
        ropes=(rope(r, table, attention.head_dim, length),),
    )
    return finish(r, found)


def names(spec: ModelSpec) -> Names:
    """By kind of block, where its weights are within a layer."""
    block = delta_block(spec)
    apart = (Part(f"linear_attn.in_proj_{part}.weight") for part in "zba")
    in_proj = (*turned("linear_attn.in_proj_qkv.weight", block), *apart)
    return {
        "attention": gated_names(spec),
        "delta": delta_names(block, in_proj),
        "mlp": MLP,
        "moe": EXPERTS | SHARED,
    }


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, names(spec), norm_add=1.0)
