"""MiniMax-M2: norms on the whole of q and of k, a part of each head turned, a sigmoid router, a bias for its choice.

The modules that guess further tokens (`use_mtp`) are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, finish, heads, require_supported, sizes
from edgedec.models._names import Names, named
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.models.mixtral import MIXTRAL
from edgedec.spec import Attention, ModelSpec, Moe

FACTS = ArchitectureFacts((*IGNORED, r"model\.mtp.*"))
NAMES: Names = {
    **MIXTRAL,
    "moe": MIXTRAL["moe"] | {"router_bias": ("block_sparse_moe.e_score_correction_bias",)},
}
# Published configs have these, of parts that no layer has here.
UNUSED = (
    *("mtp_transformer_layers", "num_mtp_modules", "use_mtp", "shared_moe_mode", "layernorm_full_attention_beta"),
    *("layernorm_linear_attention_beta", "layernorm_mlp_beta", "max_model_len"),
)
# (supported, what the code assumes)
FIXED: dict[str, tuple[Any, Any]] = {
    "scoring_func": ("sigmoid", "sigmoid"),
    "use_qk_norm": (True, True),
    "qk_norm_type": ("per_layer", "per_layer"),
    "use_routing_bias": (True, True),
    "shared_intermediate_size": (0, 0),
}


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    require_supported(r, FIXED)
    for key in UNUSED:
        r.value(key, None)
    if any(kind != 1 for kind in r.items("attn_type_list", int) or []):
        raise r.fail("attn_type_list", "has layers that do not attend; supported is 1 only")
    common = heads(r, kv_heads=8, head_dim=128)
    turned = r.maybe_whole("rotary_dim")
    usual = {"partial_rotary_factor": turned / common["head_dim"]} if turned else {}
    table = rope_table(ConfigReader(usual | dict(config), r.where, r.read), 5e6, partial=True)
    length = context_length(r, table, context)
    attention = Attention(**common, qk_norm="full")
    moe = Moe(
        n_experts=r.whole("num_local_experts"),
        top_k=r.whole("num_experts_per_tok"),
        inner_size=r.whole("intermediate_size"),
        router="sigmoid",
        router_bias=True,
        activation=activation(r),
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
