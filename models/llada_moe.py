"""LLaDA-MoE (arXiv:2509.24389): LLaDA with experts, and norms on every head of q and k. Unshifted, sees everything.

The router is a softmax over all experts; the weights of the chosen stay as they are. Rests on the authors' code and
model card. Published as model_type `llada`, with `num_experts`. Shared experts, groups and biases of the router, which
the config can name, are in no published model and refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Fills, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, finish, heads, sizes
from edgedec.models._diffusion import base_config, only
from edgedec.models._names import named
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.spec import Attention, Mlp, ModelSpec, Moe

FACTS = ArchitectureFacts(IGNORED, Fills(shift=False, context="full", block=32, mask=156895))
# (supported, what the code assumes)
FIXED: dict[str, tuple[Any, Any]] = {
    "qk_layernorm": (True, True),
    "moe_router_score_function": ("softmax", "softmax"),
    "moe_router_enable_expert_bias": (False, False),
}
# Entries that are off if absent, null or this.
OFF: dict[str, tuple[Any, ...]] = {
    "clip_qkv": (),
    "shared_expert_intermediate_size": (0,),
    "router_num_group": (0, 1),
    "router_topk_group": (0, 1),
    "routed_scaling_factor": (1,),
    "norm_topk_prob": (False,),
}


def sparse(r: ConfigReader) -> list[bool]:
    """Which layers have experts: `moe_layer_freq` has a 1 for each of them."""
    n = r.whole("num_hidden_layers")
    freq = r.items("moe_layer_freq", int) or [1] * n
    if len(freq) != n or not set(freq) <= {0, 1}:
        raise r.fail("moe_layer_freq", f"must have a 0 or a 1 for each of {n} layers")
    return [bool(one) for one in freq]


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(base_config(config))
    for key, (wanted, default) in FIXED.items():
        only(r, key, wanted, default)
    for key, off in OFF.items():
        if (found := r.value(key, None)) is not None and found not in off:
            raise r.fail(key, f"is {found!r:.40}, which is not supported")
    table = rope_table(r, 50000.0)
    length = context_length(r, table, context)
    bias = r.flag("attention_bias", False)
    attention = Attention(**heads(r), qk_norm="head", qkv_bias=bias, o_bias=bias)
    moe = Moe(
        n_experts=r.whole("num_experts"),
        top_k=r.whole("num_experts_per_tok"),
        inner_size=r.whole("expert_intermediate_size"),
        normalize=False,
        activation=activation(r),
    )
    dense = Mlp(r.whole("dense_intermediate_size", 8192), activation=moe.activation)
    found = ModelSpec(
        **sizes(r, tied=False, eps=1e-5),
        context_length=length,
        layers=tuple((attention, moe if experts else dense) for experts in sparse(r)),
        ropes=(rope(r, table, attention.head_dim, length),),
    )
    return finish(r, found)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec)
