"""Gemma 2: norms before and after each block, soft caps, a window on every other layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader, Heads, activation, finish, heads, sizes, sliding, windows
from edgedec.models._names import ATTENTION, MLP, Names, named
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.spec import Attention, Mlp, ModelSpec

FACTS = ArchitectureFacts(IGNORED)
GEMMA: Names = {
    "attention": ATTENTION | {"post_norm": ("post_attention_layernorm.weight",)},
    "mlp": MLP | {"norm": ("pre_feedforward_layernorm.weight",), "post_norm": ("post_feedforward_layernorm.weight",)},
}


def embed_scale(hidden_size: int) -> float:
    """sqrt(hidden) as the float32 number a float32 model multiplies by."""
    return float(np.float32(hidden_size**0.5))


def gemma_heads(r: ConfigReader) -> Heads:
    """The common fields of the attention, its scale given by `query_pre_attn_scalar`."""
    common = heads(r, kv_heads=4, head_dim=256)
    common["scale"] = r.number("query_pre_attn_scalar", 256) ** -0.5
    return common


def gemma_mlp(r: ConfigReader) -> Mlp:
    chosen = activation(r, "hidden_activation", "gelu_pytorch_tanh")
    return Mlp(r.whole("intermediate_size"), activation=chosen, post_norm="rms")


def refuse_bidirectional(r: ConfigReader) -> None:
    if r.value("use_bidirectional_attention", None):
        raise r.fail("use_bidirectional_attention", "is set: an embedding model, not one that decodes")


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    refuse_bidirectional(r)
    for leftover in ("hidden_act", "sliding_window_size"):  # hidden_activation and sliding_window decide
        r.value(leftover, None)
    table = rope_table(r)
    length = context_length(r, table, context)
    bias = r.flag("attention_bias", False)
    slides = sliding(r, [i % 2 == 0 for i in range(r.whole("num_hidden_layers"))])
    spans = windows(r, slides, r.maybe_whole("sliding_window", 4096), length)
    cap = r.maybe_number("attn_logit_softcapping", 50.0) or 0.0
    attention = Attention(**gemma_heads(r), softcap=cap, qkv_bias=bias, o_bias=bias, post_norm="rms")
    mlp, common = gemma_mlp(r), sizes(r, tied=True)
    found = ModelSpec(
        **common,
        context_length=length,
        layers=tuple((replace(attention, window=w), mlp) for w in spans),
        ropes=(rope(r, table, attention.head_dim, length),),
        final_softcap=r.maybe_number("final_logit_softcapping", 30.0) or 0.0,
        embed_scale=embed_scale(common["hidden_size"]),
    )
    return finish(r, found)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, GEMMA, norm_add=1.0)
