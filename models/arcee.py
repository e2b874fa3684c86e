"""Arcee (AFM): Llama with a plain feed-forward of squared ReLUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, heads
from edgedec.models._dense import rotary
from edgedec.models._names import ATTENTION, Names, Paths, named
from edgedec.spec import Attention, Mlp, ModelSpec

FACTS = ArchitectureFacts(IGNORED)
PLAIN: Paths = {
    **{"norm": ("post_attention_layernorm.weight",)},
    **{"up": ("mlp.up_proj.weight",), "up_bias": ("mlp.up_proj.bias",)},
    **{"down": ("mlp.down_proj.weight",), "down_bias": ("mlp.down_proj.bias",)},
}
NAMES: Names = {"attention": ATTENTION, "mlp": PLAIN}


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    bias = r.flag("attention_bias", False)
    attention = Attention(**heads(r), qkv_bias=bias, o_bias=bias)
    act, mlp_bias = activation(r, default="relu2"), r.flag("mlp_bias", False)
    mlp = Mlp(r.whole("intermediate_size"), gated=False, activation=act, bias=mlp_bias)
    return rotary(r, context, (attention, mlp), attention.head_dim, tied=False, eps=1e-5)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, NAMES)
