"""The gated delta rule and the gated attention of Qwen3-Next and its relatives: their fields of a config, and where
their weights are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import Part
from edgedec.models._common import ConfigReader, activation, heads
from edgedec.models._names import ATTENTION, Paths
from edgedec.spec import Attention, Delta, ModelSpec

# As configs name the types of layers.
KINDS = {"full_attention": True, "linear_attention": False}
# How many of the positions of text, height and width turn which pair: of a text all three are alike.
_POSITIONS = ("mrope_section", "mrope_interleaved")


def attends(r: ConfigReader, every: int = 4) -> list[bool]:
    """Which layers attend; the others follow the delta rule."""
    n, types = r.whole("num_hidden_layers"), r.items("layer_types", str)
    every = r.whole("full_attention_interval", every)
    if types is None:
        return [(i + 1) % every == 0 for i in range(n)]
    if len(types) != n:
        raise r.fail("layer_types", f"names {len(types)} layers of {n}")
    unknown = sorted(set(types) - KINDS.keys())
    if unknown:
        raise r.fail("layer_types", f"{unknown[0]!r} is not supported; known: {', '.join(KINDS)}")
    return [KINDS[kind] for kind in types]


def delta(r: ConfigReader, **fields: Any) -> Delta:
    """The block that the `linear_` keys of a config describe; fields: those that it does not."""
    if activation(r) != "silu":
        raise r.fail("hidden_act", f"{r.values['hidden_act']!r} is not supported by delta blocks; known: silu")
    return Delta(
        n_heads=r.whole("linear_num_value_heads", 32),
        head_dim=r.whole("linear_value_head_dim", 128),
        key_dim=r.whole("linear_key_head_dim", 128),
        n_groups=r.whole("linear_num_key_heads", 16),
        conv_size=r.whole("linear_conv_kernel_dim", 4),
        **fields,
    )


def gated_attention(r: ConfigReader, kv_heads: int) -> Attention:
    """Attention whose every channel has a gate."""
    if not r.flag("attn_output_gate", True):
        raise r.fail("attn_output_gate", "is false, which transformers ignores: what is meant is not clear")
    bias = r.flag("attention_bias", False)
    common = heads(r, kv_heads=kv_heads, head_dim=256)
    return Attention(**common, qk_norm="head", qkv_bias=bias, o_bias=bias, gate="channel")


def text_ropes(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with the positions of a text alone, and a quarter of a head turned where it says nothing."""
    table = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    table = {key: value for key, value in table.items() if key not in _POSITIONS}
    table.setdefault("partial_rotary_factor", config.get("partial_rotary_factor", 0.25))
    gone = ("rope_scaling", "partial_rotary_factor")
    return {key: value for key, value in config.items() if key not in gone} | {"rope_parameters": table}


def gated_names(spec: ModelSpec) -> Paths:
    """The names of gated attention: of q_proj the rows of a head's query come before those of its gate."""
    block = next(iter(spec.attention.values()))

    def rows(kind: str) -> tuple[Part, ...]:
        name, dim = f"self_attn.q_proj.{kind}", block.head_dim
        both = [[Part(name, (at, at + dim)) for at in range(start, 2 * block.q_dim, 2 * dim)] for start in (0, dim)]
        return (*both[0], Part(f"self_attn.k_proj.{kind}"), Part(f"self_attn.v_proj.{kind}"), *both[1])

    return ATTENTION | {"qkv": rows("weight"), "qkv_bias": rows("bias")}


def delta_block(spec: ModelSpec) -> Delta:
    """The first block of the delta rule; the others are alike."""
    return next(block for block in spec.blocks if isinstance(block, Delta))


def turned(name: str, block: Delta, flat: bool = False) -> tuple[Part, ...]:
    """Rows of queries, keys and values, as a block wants them: values, keys, queries."""
    keys = block.n_groups * block.key_dim
    cuts = (2 * keys, block.conv_dim), (keys, 2 * keys), (0, keys)
    return tuple(Part(name, rows, flat=flat) for rows in cuts)


def delta_names(block: Delta, in_proj: tuple[str | Part, ...]) -> Paths:
    """The names of a block of the delta rule; types differ in the rows of `in_proj` alone. Its gated norm is stored as
    it is, also where others are less 1."""
    return {
        "norm": ("input_layernorm.weight",),
        "in_proj": in_proj,
        "conv": turned("linear_attn.conv1d.weight", block, flat=True),
        "dt_bias": ("linear_attn.dt_bias",),
        "a": (Part("linear_attn.A_log", exp=True, times=-1.0),),
        "gate_norm": (Part("linear_attn.norm.weight", add=-1.0),),
        "out_proj": ("linear_attn.out_proj.weight",),
    }
