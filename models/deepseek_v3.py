"""DeepSeek-V3 and R1 (Kimi K2 too): latent attention, and after the first layers experts that a sigmoid router chooses
from the best groups. The modules that guess further tokens are left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader, finish, require_supported, sizes
from edgedec.models._experts import DEEPSEEK, deepseek_experts, dense_first
from edgedec.models._latent import latent_heads, latent_names
from edgedec.models._names import named
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.spec import Mlp, ModelSpec

FACTS = ArchitectureFacts(IGNORED)
# (supported, what the code assumes)
FIXED: dict[str, tuple[Any, Any]] = {
    "moe_layer_freq": (1, 1),
    "scoring_func": ("sigmoid", "sigmoid"),
    "topk_method": ("noaux_tc", "noaux_tc"),
}
TRAINING = ("aux_loss_alpha", "seq_aux", "ep_size")


def fixed(r: ConfigReader, facts: Mapping[str, tuple[Any, Any]]) -> None:
    """Refuse another value of a fact than the supported one."""
    for key in TRAINING:
        r.value(key, None)
    require_supported(r, facts)


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    fixed(r, FIXED)
    r.flag("rope_interleave", True)  # `weights` needs it
    table = rope_table(r)
    length = context_length(r, table, context)
    attention = latent_heads(r, table, q_rank=1536, sizes=(512, 128, 64, 128))
    moe = deepseek_experts(r, groups=8, top_groups=4, scale=2.5)
    mlp = Mlp(r.whole("intermediate_size"), activation=moe.activation)
    found = ModelSpec(
        **sizes(r, tied=False),
        context_length=length,
        layers=tuple((attention, moe if experts else mlp) for experts in dense_first(r, 3)),
        ropes=(rope(r, table, attention.rope_dim, length),),
    )
    return finish(r, found)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, {**DEEPSEEK, "latent": latent_names(spec, config.get("rope_interleave", True))})
