"""Gemma (2024): Llama with norms of 1 + w, a scaled embedding and gelu."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, heads
from edgedec.models._dense import rotary
from edgedec.models._names import named
from edgedec.models.gemma2 import embed_scale, refuse_bidirectional
from edgedec.spec import Activation, Attention, Mlp, ModelSpec

FACTS = ArchitectureFacts(IGNORED)


def _activation(r: ConfigReader) -> Activation:
    """The published configs say gelu and mean its approximation."""
    found = activation(r, default="gelu_pytorch_tanh")
    given = activation(r, "hidden_activation") if r.value("hidden_activation", None) else found
    return "gelu_tanh" if given == "gelu" else given


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    refuse_bidirectional(r)
    bias = r.flag("attention_bias", False)
    attention = Attention(**heads(r, kv_heads=16, head_dim=256), qkv_bias=bias, o_bias=bias)
    mlp = Mlp(r.whole("intermediate_size"), activation=_activation(r))
    scale = embed_scale(r.whole("hidden_size"))
    return rotary(r, context, (attention, mlp), attention.head_dim, tied=True, embed_scale=scale)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, norm_add=1.0)
