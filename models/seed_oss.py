"""Seed-OSS: Llama with biases of q, k and v."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, heads
from edgedec.models._dense import rotary
from edgedec.models._names import named
from edgedec.spec import Attention, Mlp, ModelSpec

FACTS = ArchitectureFacts(IGNORED)


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    bias, o_bias = r.flag("attention_bias", True), r.flag("attention_out_bias", False)
    attention = Attention(**heads(r, kv_heads=8, head_dim=128), qkv_bias=bias, o_bias=o_bias)
    mlp = Mlp(r.whole("intermediate_size"), bias=r.flag("mlp_bias", False), activation=activation(r))
    return rotary(r, context, (attention, mlp), attention.head_dim, tied=False)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec)
