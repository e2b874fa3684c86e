"""Jais 2: Llama with LayerNorms, biases everywhere, and a plain feed-forward of squared ReLUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, heads
from edgedec.models._dense import LAYER_OUTER, rotary
from edgedec.models._names import named
from edgedec.models.nemotron import NAMES
from edgedec.spec import Attention, Mlp, ModelSpec

FACTS = ArchitectureFacts(IGNORED)


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    bias, mlp_bias = r.flag("attention_bias", True), r.flag("mlp_bias", True)
    attention = Attention(**heads(r), qkv_bias=bias, o_bias=bias, norm="layer")
    act = activation(r, default="relu2")
    mlp = Mlp(r.whole("intermediate_size"), gated=False, activation=act, bias=mlp_bias, norm="layer")
    facts: dict[str, Any] = {"eps": 1e-5, "eps_key": "layer_norm_eps", "final_norm": "layer"}
    return rotary(r, context, (attention, mlp), attention.head_dim, tied=False, **facts)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, NAMES, outer=LAYER_OUTER)
