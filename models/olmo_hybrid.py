"""OLMo Hybrid: OLMo 2's attention in every fourth layer, the gated delta rule in the others, each with norms of its
own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Part, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, finish, heads, sizes
from edgedec.models._delta import attends, delta
from edgedec.models._names import Names, named
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.models.olmo2 import OLMO
from edgedec.spec import Attention, Block, Mlp, ModelSpec

# Names of the norms of delta layers as published, which transformers also writes for those of other layers.
FACTS = ArchitectureFacts(
    IGNORED,
    renames=(
        ("input_layernorm", "attention_layer_norm"),
        ("post_attention_layernorm", "feedforward_layer_norm"),
    ),
)
_NAMES: Names = {
    **OLMO,
    "delta": {
        "norm": ("input_layernorm.weight",),
        "in_proj": tuple(f"linear_attn.{part}_proj.weight" for part in "vkqgba"),
        "conv": tuple(Part(f"linear_attn.{part}_conv1d.weight", flat=True) for part in "vkq"),
        "dt_bias": ("linear_attn.dt_bias",),
        "a": (Part("linear_attn.A_log", exp=True, times=-1.0),),
        "gate_norm": ("linear_attn.o_norm.weight",),
        "out_proj": ("linear_attn.o_proj.weight",),
    },
}
# Of the norm inside the delta rule, whatever the model's.
_GATE_EPS = 1e-5
# How weights begin in training.
_DRAWN = ("linear_a_log_min", "linear_a_log_max", "linear_dt_min", "linear_dt_max", "linear_dt_init_floor")


def _filled(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with the sizes that others give where it has none."""
    r = ConfigReader(config)
    hidden, n = r.whole("hidden_size"), r.whole("num_attention_heads")
    keys = r.maybe_whole("linear_num_key_heads") or n
    dim = r.maybe_whole("linear_key_head_dim") or int(0.75 * hidden / keys)
    usual = {
        "linear_num_key_heads": keys,
        "linear_num_value_heads": n,
        "linear_key_head_dim": dim,
        "linear_value_head_dim": 2 * dim,
    }
    return usual | {key: value for key, value in config.items() if key not in usual or value is not None}


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(_filled(config))
    turns = r.table("rope_parameters").get("rope_theta") is not None or r.value("rope_theta", None) is not None
    table = rope_table(r)
    length = context_length(r, table, context)
    for key in _DRAWN:
        r.value(key, None)
    scale = 2.0 if r.flag("linear_allow_neg_eigval", True) else 1.0
    bias = r.flag("attention_bias", False)
    attention = Attention(
        **heads(r), rope=0 if turns else None, qk_norm="full", qkv_bias=bias, o_bias=bias, norm="none", post_norm="rms"
    )
    linear, inner = delta(r, beta_scale=scale, eps=_GATE_EPS), r.whole("intermediate_size")
    pairs: dict[bool, tuple[Block, ...]] = {
        True: (attention, Mlp(inner, activation=activation(r), norm="none", post_norm="rms")),
        False: (linear, Mlp(inner, activation=activation(r))),
    }
    found = ModelSpec(
        **sizes(r, tied=False),
        context_length=length,
        layers=tuple(pairs[on] for on in attends(r)),
        ropes=(rope(r, table, attention.head_dim, length),) if turns else (),
    )
    return finish(r, found)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, _NAMES)
