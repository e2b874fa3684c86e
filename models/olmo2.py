"""OLMo 2: norms only after each block, and on the whole of q and of k."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import Source
from edgedec.models._common import IGNORED, LLAMA, Reader, activation, finish, named, sizes
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.spec import Layer, ModelSpec

ignored = IGNORED
OLMO = LLAMA | {
    "attn_post_norm": ("post_attention_layernorm.weight",),
    "mlp_post_norm": ("post_feedforward_layernorm.weight",),
}


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = Reader(config)
    common, table = sizes(r, tied=False, eps=1e-5), rope_table(r)
    length = context_length(r, table, context)
    bias = r.flag("attention_bias", False)
    found = ModelSpec(
        **common,
        context_length=length,
        layers=(Layer(),) * r.whole("num_hidden_layers"),
        ropes=(rope(r, table, common["head_dim"], length),),
        norm_before=False,
        norm_after=True,
        qk_norm="full",
        qkv_bias=bias,
        o_bias=bias,
        activation=activation(r),
    )
    return finish(r, found)


def weights(spec: ModelSpec) -> dict[str, Source]:
    return named(spec, OLMO)
