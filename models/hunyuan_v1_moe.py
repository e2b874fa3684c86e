"""HunYuan with experts (A13B): HunYuan dense, a few of many experts and one for all rows in every layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, either, heads, require_usual
from edgedec.models._dense import rotary
from edgedec.models._names import EXPERTS, Names, named
from edgedec.models.hunyuan_v1_dense import FIXED, NAMES, UNUSED, stretched
from edgedec.spec import Attention, ModelSpec, Moe

FACTS = ArchitectureFacts(IGNORED)
_NAMES: Names = {
    "attention": NAMES["attention"],
    "moe": EXPERTS
    | {
        "router": ("mlp.gate.wg.weight",),
        "shared_gate_up": ("mlp.shared_mlp.gate_proj.weight", "mlp.shared_mlp.up_proj.weight"),
        "shared_down": ("mlp.shared_mlp.down_proj.weight",),
    },
}
# What its own code reads besides, and transformers does not.
_FIXED: dict[str, Any] = FIXED | {
    "use_mixed_mlp_moe": True,
    "moe_layer_num_skipped": 0,
    "norm_topk_prob": True,
    "group_limited_greedy": False,
    "use_mla": False,
    "routed_scaling_factor": 1.0,
}
_UNUSED = (
    *(name for name in UNUSED if name not in _FIXED),
    *("moe_drop_tokens", "moe_random_routing_dropped_token", "capacity_factor", "anyres_vit_max_image_size"),
    *("kv_lora_rank", "q_lora_rank", "n_group", "topk_group", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
)


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    head_dim = config.get("head_dim") or config.get("attention_head_dim")
    r = ConfigReader(stretched({**config, "head_dim": head_dim}))
    require_usual(r, _FIXED)
    for key in _UNUSED:
        r.value(key, None)
    bias = r.flag("attention_bias", False)
    attention = Attention(**heads(r), qkv_bias=bias, o_bias=bias, qk_norm="head", qk_norm_last=True)
    layers = tuple((attention, moe) for moe in _experts(r))
    return rotary(r, context, lambda length: layers, attention.head_dim, tied=False, eps=1e-5)


def _experts(r: ConfigReader) -> list[Moe]:
    """The experts of each layer, whose numbers may differ; all are as wide as `intermediate_size`."""
    wide, act = r.whole("intermediate_size"), activation(r)
    for key, only in (("moe_intermediate_size", wide), ("num_shared_expert", 1)):
        if set(_each(r, key, only)) != {only}:
            raise r.fail(key, f"{r.values[key]!r:.40} is not supported; known: {only} in every layer")
    numbers = _each(r, either(r, "num_experts", "num_local_experts"), 1)
    chosen = _each(r, either(r, "moe_topk", "num_experts_per_tok"), 1)
    return [Moe(n, k, wide, shared_size=wide, activation=act) for n, k in zip(numbers, chosen, strict=True)]


def _each(r: ConfigReader, key: str, usual: int) -> list[int]:
    """A whole number of each layer: the same of all, or a list."""
    n = r.whole("num_hidden_layers")
    if not isinstance(r.value(key, None), list):
        return [r.maybe_whole(key) or usual] * n
    found = r.items(key, int) or []
    if len(found) != n or min(found) < 1:
        raise r.fail(key, f"must be {n} whole numbers of at least 1, found {found!r:.40}")
    return found


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, _NAMES)
