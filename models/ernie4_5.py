"""ERNIE 4.5, dense: Llama whose rope turns neighbours, with biases everywhere or nowhere."""

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
    r.value("compression_ratio", None)  # a leftover of its first code, which no inference reads
    bias = bool(r.value("use_bias", False))
    attention = Attention(**heads(r, kv_heads=2, head_dim=128), qkv_bias=bias, o_bias=bias)
    mlp = Mlp(r.whole("intermediate_size"), bias=bias, activation=activation(r))
    return rotary(r, context, (attention, mlp), attention.head_dim, tied=True, eps=1e-5, theta=500000.0)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return paired(spec, LLAMA)
