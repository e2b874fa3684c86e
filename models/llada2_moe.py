"""LLaDA2.0 and 2.1 (arXiv:2512.15745), the layers of Ling 2. Blocks of 32, unshifted.

A half of each head is turned, q, k and v are one matrix, and a sigmoid router with a bias for the choice takes experts
from the best groups only. Rests on the authors' code, in which block and mask are defaults of `generate`, and which
norms the weights of the chosen if there is more than one, whatever `norm_topk_prob` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Fills, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, finish, heads, sizes
from edgedec.models._diffusion import base_config, only
from edgedec.models._names import ATTENTION, EXPERTS, MLP, OUTER, Names, named
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.spec import Attention, Mlp, ModelSpec, Moe

FACTS = ArchitectureFacts(IGNORED, Fills(shift=False, context="block", block=32, mask=156895))
NAMES: Names = {
    "attention": {
        "norm": ATTENTION["norm"],
        "qkv": ("attention.query_key_value.weight",),
        "qkv_bias": ("attention.query_key_value.bias",),
        "q_norm": ("attention.query_layernorm.weight",),
        "k_norm": ("attention.key_layernorm.weight",),
        "o": ("attention.dense.weight",),
        "o_bias": ("attention.dense.bias",),
    },
    "mlp": MLP,
    "moe": EXPERTS
    | {
        "router_bias": ("mlp.gate.expert_bias",),
        "shared_gate_up": ("mlp.shared_experts.gate_proj.weight", "mlp.shared_experts.up_proj.weight"),
        "shared_down": ("mlp.shared_experts.down_proj.weight",),
    },
}
# (supported, what the code assumes)
FIXED: dict[str, tuple[Any, Any]] = {
    "use_qk_norm": (True, True),
    "use_rmsnorm": (True, True),
    "norm_topk_prob": (True, True),
    "norm_head": (False, False),
    "norm_softmax": (False, False),
    "score_function": ("sigmoid", "sigmoid"),
    "moe_router_enable_expert_bias": (True, True),
}
UNUSED = ("router_dtype", "mtp_loss_scaling_factor", "max_window_layers", "sliding_window")


def routed(r: ConfigReader) -> Moe:
    """The block of experts."""
    inner, k, shared = (
        r.whole("moe_intermediate_size"),
        r.whole("num_experts_per_tok"),
        r.value("num_shared_experts", 0),
    )
    only(r, "moe_shared_expert_intermediate_size", inner, inner)
    return Moe(
        n_experts=r.whole("num_experts"),
        top_k=k,
        inner_size=inner,
        router="sigmoid",
        normalize=k > 1,
        scale=r.number("routed_scaling_factor", 2.5),
        router_bias=True,
        groups=r.whole("n_group", 8),
        top_groups=r.whole("topk_group", 4),
        shared_size=inner * (r.whole("num_shared_experts", least=0) if shared else 0),
        activation=activation(r),
    )


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader({"partial_rotary_factor": 0.5} | base_config(config))
    for key, (wanted, default) in FIXED.items():
        only(r, key, wanted, default)
    for key in UNUSED:
        r.value(key, None)
    table = rope_table(r, partial=True)
    length = context_length(r, table, context)
    r.whole("num_key_value_heads")
    attention = Attention(
        **heads(r), qk_norm="head", qkv_bias=r.flag("use_qkv_bias", False), o_bias=r.flag("use_bias", True)
    )
    moe, dense = routed(r), r.whole("first_k_dense_replace", 0, least=0)
    mlp = Mlp(r.whole("intermediate_size"), activation=moe.activation)
    found = ModelSpec(
        **sizes(r, tied=False, eps=1e-5),
        context_length=length,
        layers=tuple((attention, mlp if i < dense else moe) for i in range(r.whole("num_hidden_layers"))),
        ropes=(rope(r, table, attention.head_dim, length),),
    )
    return finish(r, found)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, NAMES, outer=OUTER | {"embed": "model.word_embeddings.weight"})
