"""LFM2: gated short convolutions in most layers, attention with q/k norms in the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Part, Source
from edgedec.models._common import IGNORED, ConfigReader, Sizes, either, finish, heads
from edgedec.models._names import OUTER, Names, Paths, named
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.spec import Attention, Conv, Mlp, ModelSpec

FACTS = ArchitectureFacts(IGNORED)
CONV: Paths = {
    "norm": ("operator_norm.weight",),
    "in_proj": ("conv.in_proj.weight",),
    "in_proj_bias": ("conv.in_proj.bias",),
    "conv": (Part("conv.conv.weight", flat=True),),
    "conv_bias": ("conv.conv.bias",),
    "out_proj": ("conv.out_proj.weight",),
    "out_proj_bias": ("conv.out_proj.bias",),
}
LFM2: Names = {
    "attention": {
        "norm": ("operator_norm.weight",),
        "qkv": ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
        "q_norm": ("self_attn.q_layernorm.weight",),
        "k_norm": ("self_attn.k_layernorm.weight",),
        "o": ("self_attn.out_proj.weight",),
    },
    "conv": CONV,
    "mlp": {
        "norm": ("ffn_norm.weight",),
        "gate_up": ("feed_forward.w1.weight", "feed_forward.w3.weight"),
        "down": ("feed_forward.w2.weight",),
    },
}
LFM2_OUTER = OUTER | {"final_norm": "model.embedding_norm.weight"}
# As configs name the types of layers.
KINDS = {"full_attention": True, "conv": False}


def lfm_sizes(r: ConfigReader) -> Sizes:
    """The common fields of the model, some by names of their own."""
    return Sizes(
        architecture=r.text("model_type"),
        vocab_size=r.whole("vocab_size"),
        hidden_size=r.whole("hidden_size"),
        norm_eps=r.number(either(r, "norm_eps", "block_norm_eps"), 1e-5),
        tied=r.flag(either(r, "tie_word_embeddings", "tie_embedding"), True),
    )


def short_conv(r: ConfigReader, size: int = 3) -> Conv:
    """The convolution block that a config describes. size: the rows that it reads where the config is silent."""
    for key in ("conv_dim", "conv_dim_out"):
        if r.maybe_whole(key) not in (None, r.whole("hidden_size")):
            raise r.fail(key, f"is {r.values[key]}, hidden_size {r.values['hidden_size']}: they must be equal")
    r.value("conv_use_xavier_init", None)  # how weights begin in training
    return Conv(r.whole("hidden_size"), r.whole("conv_L_cache", size), bias=r.flag("conv_bias", False))


def attends(r: ConfigReader) -> list[bool]:
    """Which layers attend; the others convolve."""
    n, types, indices = r.whole("num_hidden_layers"), r.items("layer_types", str), r.items("full_attn_idxs", int)
    if types is None:
        return [indices is None or i in indices for i in range(n)]
    if len(types) != n:
        raise r.fail("layer_types", f"names {len(types)} layers of {n}")
    unknown = sorted(set(types) - KINDS.keys())
    if unknown:
        raise r.fail("layer_types", f"{unknown[0]!r} is not supported; known: {', '.join(KINDS)}")
    return [KINDS[kind] for kind in types]


def _inner_size(r: ConfigReader) -> int:
    """The width of the MLP: two thirds of what the config says, stretched and rounded up, unless that is final."""
    size = r.whole(either(r, "intermediate_size", "block_ff_dim"))
    factor, multiple = r.maybe_number("block_ffn_dim_multiplier", 1.0), r.whole("block_multiple_of", 256)
    r.value("block_mlp_init_scale", None), r.value("block_out_init_scale", None)
    if not r.flag("block_auto_adjust_ff_dim", True):
        return size
    size = int(2 * size / 3)
    return size if factor is None else -(-int(factor * size) // multiple) * multiple


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    table = rope_table(r, 1e6)
    length = context_length(r, table, context)
    for leftover, usual in (("block_dim", "hidden_size"), ("num_heads", "num_attention_heads")):
        either(r, usual, leftover)
    for leftover in ("block_use_swiglu", "block_use_xavier_init", "use_pos_enc"):
        if r.flag(leftover, True) is not True:
            raise r.fail(leftover, "is false, which transformers ignores: what is meant is not clear")
    kinds, conv = attends(r), short_conv(r)
    attention = Attention(**heads(r, kv_heads=8), qk_norm="head")
    mlp = Mlp(_inner_size(r))
    found = ModelSpec(
        **lfm_sizes(r),
        context_length=length,
        layers=tuple((attention if on else conv, mlp) for on in kinds),
        ropes=(rope(r, table, attention.head_dim, length),),
    )
    return finish(r, found)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, LFM2, outer=LFM2_OUTER)
