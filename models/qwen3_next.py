"""Qwen3-Next: the gated delta rule in three of four layers, gated attention in the fourth, experts and a shared one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Part, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, either, finish, sizes
from edgedec.models._delta import attends, delta, delta_block, delta_names, gated_attention, gated_names, text_ropes
from edgedec.models._names import EXPERTS, MLP, Paths, named
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.models.qwen3_moe import sparse
from edgedec.spec import Delta, Mlp, ModelSpec, Moe

FACTS = ArchitectureFacts((*IGNORED, r"mtp\..*"))
SHARED: Paths = {
    "shared_gate_up": ("mlp.shared_expert.gate_proj.weight", "mlp.shared_expert.up_proj.weight"),
    "shared_down": ("mlp.shared_expert.down_proj.weight",),
    "shared_gate": ("mlp.shared_expert_gate.weight",),
}


def qwen_experts(r: ConfigReader, normalize: bool) -> Moe:
    """Experts with one more that all rows pass, times a gate."""
    return Moe(
        n_experts=r.whole(either(r, "num_experts", "num_local_experts")),
        top_k=r.whole("num_experts_per_tok"),
        inner_size=r.whole("moe_intermediate_size"),
        normalize=normalize,
        shared_size=r.whole("shared_expert_intermediate_size"),
        shared_gate=True,
        activation=activation(r),
    )


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(text_ropes(config))
    table = rope_table(r, partial=True)
    length = context_length(r, table, context)
    attention, linear, moe = gated_attention(r, 2), delta(r), qwen_experts(r, r.flag("norm_topk_prob", True))
    mlp = Mlp(r.whole("intermediate_size"), activation=activation(r))
    kinds = zip(attends(r), sparse(r), strict=True)
    found = ModelSpec(
        **sizes(r, tied=False),
        context_length=length,
        layers=tuple((attention if on else linear, moe if experts else mlp) for on, experts in kinds),
        ropes=(rope(r, table, attention.head_dim, length),),
    )
    return finish(r, found)


def grouped(block: Delta) -> tuple[Part, ...]:
    """The rows of in_proj: in a checkpoint each key head has its q, k, v and z one after another, then its b and a."""
    share, dim, keys = block.n_heads // block.n_groups, block.head_dim, block.key_dim
    values = share * dim
    starts = [group * 2 * (keys + values) for group in range(block.n_groups)]

    def rows(name: str, at: list[int], offset: int, n: int) -> list[Part]:
        return [Part(f"linear_attn.{name}.weight", (start + offset, start + offset + n)) for start in at]

    v, k, q, z = (
        rows("in_proj_qkvz", starts, offset, n)
        for offset, n in ((2 * keys, values), (keys, keys), (0, keys), (2 * keys + values, values))
    )
    pairs = [group * 2 * share for group in range(block.n_groups)]
    return (*v, *k, *q, *z, *rows("in_proj_ba", pairs, 0, share), *rows("in_proj_ba", pairs, share, share))


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    block = delta_block(spec)
    names = {"attention": gated_names(spec), "delta": delta_names(block, grouped(block))}
    return named(spec, {**names, "mlp": MLP, "moe": EXPERTS | SHARED}, norm_add=1.0)
