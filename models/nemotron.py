"""Nemotron 3 and 4 and Minitron: LayerNorms of 1 + w, a plain feed-forward of squared ReLUs, a rope in half of each
head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, heads
from edgedec.models._dense import LAYER_OUTER, layer_norm, rotary
from edgedec.models._names import ATTENTION, Names, named
from edgedec.models.arcee import PLAIN
from edgedec.spec import Attention, Mlp, ModelSpec

FACTS = ArchitectureFacts(IGNORED)
NAMES: Names = {
    "attention": ATTENTION | layer_norm("norm", "input_layernorm"),
    "mlp": PLAIN | layer_norm("norm", "post_attention_layernorm"),
}


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    bias, mlp_bias = r.flag("attention_bias", False), r.flag("mlp_bias", False)
    attention = Attention(**heads(r), qkv_bias=bias, o_bias=bias, norm="layer")
    act = activation(r, default="relu2")
    mlp = Mlp(r.whole("intermediate_size"), gated=False, activation=act, bias=mlp_bias, norm="layer")
    facts: dict[str, Any] = {"eps": 1e-5, "eps_key": "norm_eps", "share": 0.5, "final_norm": "layer"}
    return rotary(r, context, (attention, mlp), attention.head_dim, tied=False, **facts)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, NAMES, outer=LAYER_OUTER, norm_add=1.0)
