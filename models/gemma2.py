"""Gemma 2: norms before and after each block, soft caps, a window on every other layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from edgedec.models import Source
from edgedec.models._common import IGNORED, LLAMA, Reader, activation, finish, named, sizes, sliding, windows
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.spec import Layer, ModelSpec

ignored = IGNORED
GEMMA = LLAMA | {
    "attn_post_norm": ("post_attention_layernorm.weight",),
    "mlp_norm": ("pre_feedforward_layernorm.weight",),
    "mlp_post_norm": ("post_feedforward_layernorm.weight",),
}


def embed_scale(hidden_size: int) -> float:
    """sqrt(hidden) as the float32 number a float32 model multiplies by."""
    return float(np.float32(hidden_size**0.5))


def refuse_bidirectional(r: Reader) -> None:
    if r.value("use_bidirectional_attention", None):
        raise r.fail("use_bidirectional_attention", "is set: an embedding model, not one that decodes")


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = Reader(config)
    refuse_bidirectional(r)
    for leftover in ("hidden_act", "sliding_window_size"):  # hidden_activation and sliding_window decide
        r.value(leftover, None)
    common, table = sizes(r, tied=True, kv_heads=4, head_dim=256), rope_table(r)
    length = context_length(r, table, context)
    bias = r.flag("attention_bias", False)
    slides = sliding(r, [i % 2 == 0 for i in range(r.whole("num_hidden_layers"))])
    common["attn_scale"] = r.number("query_pre_attn_scalar", 256) ** -0.5
    found = ModelSpec(
        **common,
        context_length=length,
        layers=tuple(Layer(window=w) for w in windows(r, slides, r.maybe_whole("sliding_window", 4096), length)),
        ropes=(rope(r, table, common["head_dim"], length),),
        norm_after=True,
        qkv_bias=bias,
        o_bias=bias,
        activation=activation(r, "hidden_activation", "gelu_pytorch_tanh"),
        attn_softcap=r.maybe_number("attn_logit_softcapping", 50.0) or 0.0,
        final_softcap=r.maybe_number("final_logit_softcapping", 30.0) or 0.0,
        embed_scale=embed_scale(common["hidden_size"]),
    )
    return finish(r, found)


def weights(spec: ModelSpec) -> dict[str, Source]:
    return named(spec, GEMMA, norm_add=1.0)
