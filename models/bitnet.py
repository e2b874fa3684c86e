"""BitNet b1.58 2B: Llama with a norm before the last matrix of each block and a feed-forward gated by squared ReLUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, heads
from edgedec.models._dense import rotary
from edgedec.models._names import ATTENTION, MLP, Names, named
from edgedec.spec import Attention, Mlp, ModelSpec

FACTS = ArchitectureFacts(IGNORED)
NAMES: Names = {
    "attention": ATTENTION | {"inner_norm": ("self_attn.attn_sub_norm.weight",)},
    "mlp": MLP | {"inner_norm": ("mlp.ffn_sub_norm.weight",)},
}


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    bias = r.flag("attention_bias", False)
    attention = Attention(**heads(r, kv_heads=5), qkv_bias=bias, o_bias=bias, inner_norm="rms")
    mlp = Mlp(r.whole("intermediate_size"), activation=activation(r, default="relu2"), inner_norm="rms")
    return rotary(r, context, (attention, mlp), attention.head_dim, tied=False, eps=1e-5, theta=500000.0)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, NAMES)
