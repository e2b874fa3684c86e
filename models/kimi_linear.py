"""Kimi Linear: the delta rule with a decay for each channel of a key in three of four layers, latent attention without
positions in the fourth, and after the first layers experts that a sigmoid router chooses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgedec.models import ArchitectureFacts, Part, Source
from edgedec.models._common import (
    IGNORED,
    ConfigReader,
    activation,
    either,
    finish,
    require_supported,
    sizes,
    unrotated_length,
)
from edgedec.models._delta import attends
from edgedec.models._experts import SHARED, dense_first
from edgedec.models._latent import latent_heads, latent_names
from edgedec.models._names import MLP, Names, Paths, named
from edgedec.models.mixtral import MIXTRAL
from edgedec.spec import Delta, Mlp, ModelSpec, Moe

# transformers also writes the first name for layers without experts.
FACTS = ArchitectureFacts(IGNORED, renames=((".mlp.", ".block_sparse_moe."),))
# (supported, what the code assumes)
_FIXED: dict[str, tuple[Any, Any]] = {
    "mla_use_nope": (True, True),
    "moe_layer_freq": (1, 1),
    "moe_router_activation_func": ("sigmoid", "sigmoid"),
    "use_grouped_topk": (True, True),
}
# Of positions, which no layer has.
_UNUSED = ("rope_theta", "rope_scaling", "rope_parameters")
# The names of the sizes of linear attention in `linear_attn_config`, and of transformers.
_SIZES = {
    "num_heads": "linear_num_heads",
    "head_dim": "linear_head_dim",
    "short_conv_kernel_size": "linear_conv_kernel_dim",
}
_MLPS = {"dense": False, "sparse": True}


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(_plain(config))
    require_supported(r, _FIXED)
    for key in _UNUSED:
        r.value(key, None)
    longest = either(r, "model_max_length", "max_position_embeddings")
    length = unrotated_length(r, context, 1048576, key=longest)
    latent = latent_heads(r, ConfigReader({"rope_type": "default"}), q_rank=None, sizes=(512, 128, 64, 128))
    attention, linear, moe = replace(latent, rope=None), _linear(r), _experts(r)
    mlp = Mlp(r.whole("intermediate_size"), activation=moe.activation)
    kinds = zip(_attends(r), _sparse(r), strict=True)
    found = ModelSpec(
        **sizes(r, tied=False, eps=1e-5),
        context_length=length,
        layers=tuple((attention if on else linear, moe if experts else mlp) for on, experts in kinds),
    )
    return finish(r, found)


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config without the width of heads that no layer has, which is published, and with the sizes of linear
    attention beside the others."""
    r = ConfigReader(config)
    no_width = r.whole("hidden_size") // r.whole("num_attention_heads")
    plain = {key: value for key, value in config.items() if (key, value) != ("head_dim", no_width)}
    table = ConfigReader(dict(plain.pop("linear_attn_config", None) or {}), f"{r.where}: linear_attn_config")
    for key, name in _SIZES.items():
        if (value := table.value(key, None)) is not None:
            plain[name] = value
    types = _types(table, r.whole("num_hidden_layers"))
    if types is not None and plain.setdefault("layer_types", types) != types:
        raise r.fail("layer_types", "and linear_attn_config name different layers: make them equal")
    table.done()
    return plain


def _types(table: ConfigReader, n: int) -> list[str] | None:
    """What the layers are, of lists that count them from 1."""
    lists = {key: table.items(key, int) for key in ("full_attn_layers", "kda_layers")}
    full, linear = lists.values()
    if full is None and linear is None:
        return None
    if sorted([*(full or ()), *(linear or ())]) != list(range(1, n + 1)):
        raise table.fail("full_attn_layers", f"and kda_layers do not name each of the {n} layers once")
    return ["full_attention" if i + 1 in (full or ()) else "linear_attention" for i in range(n)]


def _attends(r: ConfigReader) -> list[bool]:
    """Which layers attend; where the config says nothing, every fourth after the first."""
    n = r.whole("num_hidden_layers")
    return [bool(i) and i % 4 == 0 for i in range(n)] if r.value("layer_types", None) is None else attends(r)


def _linear(r: ConfigReader) -> Delta:
    """Decays and gates are made by way of as many values as a head has."""
    if activation(r) != "silu":
        raise r.fail("hidden_act", f"{r.values['hidden_act']!r} is not supported by delta blocks; known: silu")
    n, dim = r.whole("linear_num_heads", 32), r.whole("linear_head_dim", 128)
    taps = r.whole("linear_conv_kernel_dim", 4)
    return Delta(n, dim, dim, n, taps, decay="channel", gate="sigmoid", rank=dim)


def _experts(r: ConfigReader) -> Moe:
    inner = r.whole("moe_intermediate_size", 1024)
    return Moe(
        n_experts=r.whole("num_experts", 256),
        top_k=r.whole("num_experts_per_token", 8),
        inner_size=inner,
        router="sigmoid",
        normalize=r.flag("moe_renormalize", True),
        scale=r.number("routed_scaling_factor", 2.446),
        router_bias=True,
        groups=r.whole("num_expert_group", 1),
        top_groups=r.whole("topk_group", 1),
        shared_size=inner * r.whole("num_shared_experts", 1),
        activation=activation(r),
    )


def _sparse(r: ConfigReader) -> list[bool]:
    """Which layers have experts, by how many have none; transformers writes their types too."""
    types, experts = r.items("mlp_layer_types", str), dense_first(r, 1)
    if types is None:
        return experts
    if len(types) != len(experts) or not set(types) <= _MLPS.keys():
        raise r.fail("mlp_layer_types", f"must name {len(experts)} layers as {' or '.join(_MLPS)}")
    found = [_MLPS[kind] for kind in types]
    if r.values.get("first_k_dense_replace") is not None and found != experts:
        raise r.fail("mlp_layer_types", "and first_k_dense_replace name different layers: make them equal")
    return found


_DELTA: Paths = {
    "norm": ("input_layernorm.weight",),
    "in_proj": tuple(f"self_attn.{part}_proj.weight" for part in ("v", "k", "q", "g_a", "b", "f_a")),
    "conv": tuple(Part(f"self_attn.{part}_conv1d.weight", flat=True) for part in "vkq"),
    "dt_bias": ("self_attn.dt_bias",),
    "a": (Part("self_attn.A_log", exp=True, times=-1.0, vector=True),),
    "gate_norm": ("self_attn.o_norm.weight",),
    "gate_up": ("self_attn.g_b_proj.weight",),
    "decay_up": ("self_attn.f_b_proj.weight",),
    "out_proj": ("self_attn.o_proj.weight",),
}
_MOE: Paths = {
    **MIXTRAL["moe"],
    **{name: tuple(str(path).replace("mlp.", "block_sparse_moe.") for path in paths) for name, paths in SHARED.items()},
    "router_bias": ("block_sparse_moe.gate.e_score_correction_bias",),
}


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    names: Names = {"delta": _DELTA, "latent": latent_names(spec, pairs=False), "mlp": MLP, "moe": _MOE}
    return named(spec, names)
