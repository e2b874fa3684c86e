"""Granite 3, dense: Llama with multipliers; those of the residual and of the logits are in the weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader, activation
from edgedec.models._dense import rotary
from edgedec.models._names import named
from edgedec.models.granitemoe import granite_heads, multipliers
from edgedec.spec import Attention, Mlp, ModelSpec

FACTS = ArchitectureFacts(IGNORED)


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    multipliers(r)  # `weights` needs them
    bias, mlp_bias = r.flag("attention_bias", False), r.flag("mlp_bias", False)
    attention = Attention(**granite_heads(r), qkv_bias=bias, o_bias=bias)
    mlp = Mlp(r.whole("intermediate_size"), bias=mlp_bias, activation=activation(r))
    scale = r.number("embedding_multiplier", 1.0)
    return rotary(r, context, (attention, mlp), attention.head_dim, tied=False, embed_scale=scale)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, times=multipliers(ConfigReader(config)))
