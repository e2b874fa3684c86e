"""Helium 1: Llama whose rope turns neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, heads
from edgedec.models._dense import rotary
from edgedec.models._names import LLAMA
from edgedec.models.glm import paired
from edgedec.spec import Attention, Mlp, ModelSpec

FACTS = ArchitectureFacts(IGNORED)


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    attention = Attention(**heads(r, kv_heads=20, head_dim=128), qkv_bias=r.flag("attention_bias", False))
    mlp = Mlp(r.whole("intermediate_size"), bias=r.flag("mlp_bias", False), activation=activation(r))
    return rotary(r, context, (attention, mlp), attention.head_dim, tied=False, eps=1e-8, theta=100000.0)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return paired(spec, LLAMA)
