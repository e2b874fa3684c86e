"""GLM-4.7-Flash: the latent attention of DeepSeek-V3 and the experts of GLM-4.5."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader, finish, sizes
from edgedec.models._experts import DEEPSEEK, deepseek_experts, dense_first
from edgedec.models._latent import latent_heads, latent_names
from edgedec.models._names import named
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.models.deepseek_v3 import FIXED, fixed
from edgedec.spec import Mlp, ModelSpec

FACTS = ArchitectureFacts(IGNORED)
KINDS = {"dense": False, "sparse": True}


def sparse(r: ConfigReader) -> list[bool]:
    """Which layers have experts, by their types or by how many have none."""
    types, usual = r.items("mlp_layer_types", str), dense_first(r, 1)
    if types is None:
        return usual
    unknown = sorted(set(types) - KINDS.keys())
    if unknown or len(types) != len(usual):
        raise r.fail("mlp_layer_types", f"must name {len(usual)} layers as {' or '.join(KINDS)}")
    return [KINDS[kind] for kind in types]


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    fixed(r, FIXED)
    r.flag("rope_interleave", True)  # `weights` needs it
    table = rope_table(r)
    length = context_length(r, table, context)
    attention = latent_heads(r, table, q_rank=768, sizes=(512, 192, 64, 256))
    moe = deepseek_experts(r, scale=1.8)
    mlp = Mlp(r.whole("intermediate_size"), activation=moe.activation)
    found = ModelSpec(
        **sizes(r, tied=False, eps=1e-5),
        context_length=length,
        layers=tuple((attention, moe if experts else mlp) for experts in sparse(r)),
        ropes=(rope(r, table, attention.rope_dim, length),),
    )
    return finish(r, found)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, {**DEEPSEEK, "latent": latent_names(spec, config.get("rope_interleave", True))})
