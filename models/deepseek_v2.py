"""DeepSeek-V2-Lite and Coder-V2-Lite: latent attention, and after the first layers experts by a softmax router.

The larger V2 chooses its experts from the best groups by their best one, `group_limited_greedy`: that is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, either, finish, sizes
from edgedec.models._experts import DEEPSEEK, dense_first
from edgedec.models._latent import latent_heads, latent_names
from edgedec.models._names import named
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.models.deepseek_v3 import fixed
from edgedec.spec import Mlp, ModelSpec, Moe

FACTS = ArchitectureFacts(IGNORED)
FIXED: dict[str, tuple[Any, Any]] = {
    "moe_layer_freq": (1, 1),
    "scoring_func": ("softmax", "softmax"),
    "topk_method": ("greedy", "greedy"),
    "norm_topk_prob": (False, False),  # transformers ignores it
    "mlp_bias": (False, False),
}


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    fixed(r, FIXED)
    for key in ("n_group", "topk_group"):
        r.value(key, None)  # of the other topk_method
    table = rope_table(r)
    length = context_length(r, table, context)
    attention = latent_heads(r, table, q_rank=1536, sizes=(512, 128, 64, 128))
    inner = r.whole("moe_intermediate_size")
    moe = Moe(
        n_experts=r.whole(either(r, "n_routed_experts", "num_experts"), 64),
        top_k=r.whole("num_experts_per_tok"),
        inner_size=inner,
        normalize=False,
        scale=r.number("routed_scaling_factor", 1.0),
        shared_size=inner * r.whole("n_shared_experts", 2),
        activation=activation(r),
    )
    mlp = Mlp(r.whole("intermediate_size"), activation=moe.activation)
    found = ModelSpec(
        **sizes(r, tied=False),
        context_length=length,
        layers=tuple((attention, moe if experts else mlp) for experts in dense_first(r, 0)),
        ropes=(rope(r, table, attention.rope_dim, length),),
    )
    return finish(r, found)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, {**DEEPSEEK, "latent": latent_names(spec, pairs=True)})
