"""HunYuan dense (0.5B to 7B): Llama whose heads of q and k are normed after the rope."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, heads, require_usual
from edgedec.models._dense import rotary
from edgedec.models._names import ATTENTION, MLP, Names, named
from edgedec.spec import Attention, Mlp, ModelSpec

FACTS = ArchitectureFacts(IGNORED)
NAMES: Names = {
    "attention": ATTENTION
    | {"q_norm": ("self_attn.query_layernorm.weight",), "k_norm": ("self_attn.key_layernorm.weight",)},
    "mlp": MLP,
}
# What its own code reads and these models do not use.
FIXED: dict[str, Any] = {"use_cla": False, "use_qk_norm": True, "mlp_bias": False, "norm_type": "rms"}
UNUSED = (
    "attention_head_dim",
    "cla_share_factor",
    "org_vocab_size",
    "position_embedding_xdrope",
    "routed_scaling_factor",
)


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(stretched(config))
    require_usual(r, FIXED)
    for key in UNUSED:
        r.value(key, None)
    bias = r.flag("attention_bias", False)
    attention = Attention(**heads(r), qkv_bias=bias, o_bias=bias, qk_norm="head", qk_norm_last=True)
    mlp = Mlp(r.whole("intermediate_size"), activation=activation(r))
    return rotary(r, context, (attention, mlp), attention.head_dim, tied=False, eps=1e-5)


def stretched(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with the base of its rope stretched by `alpha`, whatever the length of a text, as the model has it."""
    key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    table = dict(config.get(key) or {})
    alpha, dim = table.pop("alpha", None), config.get("head_dim")
    if table.get("rope_type", table.get("type")) != "dynamic" or not alpha or not isinstance(dim, int) or dim < 4:
        return dict(config)
    theta = table.get("rope_theta", config.get("rope_theta", 10000.0)) * alpha ** (dim / (dim - 2))
    return {**config, key: None, "rope_parameters": {"rope_type": "default", "rope_theta": theta}}


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, NAMES)
