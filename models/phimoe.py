"""Phi-3.5-MoE: two experts a row, weighed by SparseMixer; LayerNorms, biases of attention and of the head, LongRoPE.

Past its original length a text has the long set of frequencies, as in the authors' code; transformers 5.24 keeps the
short one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import ConfigReader, activation, finish, heads, sizes, windows
from edgedec.models._dense import LAYER_OUTER, layer_norm
from edgedec.models._names import ATTENTION, Names, named
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.models.mixtral import MIXTRAL
from edgedec.spec import Attention, ModelSpec, Moe

FACTS = ArchitectureFacts((r".*rotary_emb\.inv_freq", r"lm_head\.(weight|bias)"))
NAMES: Names = {
    "attention": ATTENTION | layer_norm("norm", "input_layernorm"),
    "moe": MIXTRAL["moe"] | layer_norm("norm", "post_attention_layernorm"),
}
# Experts of a row, whatever the config says.
_CHOSEN = 2


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(_scaled(config))
    r.value("input_jitter_noise", None)  # of training
    table = rope_table(r, 1e6)
    length = context_length(r, table, context)
    window, bias = r.maybe_whole("sliding_window"), r.flag("attention_bias", False)
    slides = [window is not None] * r.whole("num_hidden_layers")
    attention, moe = Attention(**heads(r, kv_heads=8), qkv_bias=bias, o_bias=bias, norm="layer"), _experts(r)
    found = ModelSpec(
        **sizes(r, tied=False, eps=1e-5),
        context_length=length,
        layers=tuple((replace(attention, window=w), moe) for w in windows(r, slides, window, length)),
        ropes=(rope(r, table, attention.head_dim, length),),
        final_norm="layer",
        head_bias=r.flag("lm_head_bias", False),
    )
    return finish(r, found)


def _experts(r: ConfigReader) -> Moe:
    if r.whole("num_experts_per_tok", _CHOSEN) != _CHOSEN:
        raise r.fail("num_experts_per_tok", f"is {r.values['num_experts_per_tok']}; its router chooses {_CHOSEN}")
    return Moe(
        n_experts=r.whole("num_local_experts", 16),
        top_k=_CHOSEN,
        inner_size=r.whole("intermediate_size"),
        router="sparsemixer",
        normalize=False,
        jitter=r.number("router_jitter_noise", 0.01),
        activation=activation(r),
        norm="layer",
    )


def _scaled(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with the scale of sines and cosines by its usual name; one for short texts and one for long."""
    key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    table = dict(config.get(key) or {})
    short, long = (table.pop(name, None) for name in ("short_mscale", "long_mscale"))
    if table.get("rope_type", table.get("type", "default")) == "default":
        return {**config, key: table or None}
    if short is None or short != long:
        why = f"short_mscale is {short}, long_mscale is {long}; supported is the same number for both"
        raise ConfigReader(config).fail(key, why)
    return {**config, key: table | {"attention_factor": short}}


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, NAMES, outer=LAYER_OUTER)
