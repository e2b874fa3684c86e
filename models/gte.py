"""GTE v1.5 and multilingual: BERT with rotary positions and a gated feed-forward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Part, Source
from edgedec.models import _encoders as e
from edgedec.models._common import ConfigReader
from edgedec.models._rope_encoders import RopeEncoderShape, rope_encoder
from edgedec.spec import ModelSpec

FACTS = ArchitectureFacts(e.IGNORED, prefixes=("new.", "gte."), encodes=True)
SHAPE = RopeEncoderShape(160_000.0, True, "gelu", True, False, True, "GteForSequenceClassification")
ATTENTION: e.Places = {
    "qkv": ("attention.qkv_proj.weight",),
    "qkv_bias": ("attention.qkv_proj.bias",),
    "o": ("attention.o_proj.weight",),
    "o_bias": ("attention.o_proj.bias",),
    "after_norm": ("attn_ln.weight",),
    "after_norm_bias": ("attn_ln.bias",),
}


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    return rope_encoder(ConfigReader(config), context, SHAPE)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    inner = int(config["intermediate_size"]) if "intermediate_size" in config else 3072
    mlp: e.Places = {
        "gate_up": tuple(Part("mlp.up_gate_proj.weight", (at, at + inner)) for at in (inner, 0)),
        "gate_up_bias": e.many_zeros("mlp_ln.weight", spec.hidden_size, 2 * inner),
        "down": ("mlp.down_proj.weight",),
        "down_bias": ("mlp.down_proj.bias",),
        "after_norm": ("mlp_ln.weight",),
        "after_norm_bias": ("mlp_ln.bias",),
    }
    outer = e.embeddings(0) | e.heads_of("pooler.dense", "classifier")
    return e.placed(spec, "encoder.layer.", ATTENTION, mlp, outer)
