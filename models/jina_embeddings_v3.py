"""Jina Embeddings v3: XLM-RoBERTa with rotary positions. Its adapters by task are merged in or left out before
export."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Part, Source
from edgedec.models import _encoders as e
from edgedec.models._common import ConfigReader
from edgedec.models._rope_encoders import RopeEncoderShape, rope_encoder
from edgedec.spec import ModelSpec

FACTS = ArchitectureFacts(e.IGNORED, prefixes=("roberta.",), encodes=True)
SHAPE = RopeEncoderShape(
    20_000.0, False, "gelu", True, True, True, "JinaEmbeddingsV3ForSequenceClassification", eps=1e-5
)
ATTENTION: e.Places = {
    "qkv": ("mixer.Wqkv.weight",),
    "qkv_bias": ("mixer.Wqkv.bias",),
    "o": ("mixer.out_proj.weight",),
    "o_bias": ("mixer.out_proj.bias",),
    "after_norm": ("norm1.weight",),
    "after_norm_bias": ("norm1.bias",),
}
MLP: e.Places = {
    "up": ("mlp.fc1.weight",),
    "up_bias": ("mlp.fc1.bias",),
    "down": ("mlp.fc2.weight",),
    "down_bias": ("mlp.fc2.bias",),
    "after_norm": ("norm2.weight",),
    "after_norm_bias": ("norm2.bias",),
}


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    return rope_encoder(ConfigReader(config), context, SHAPE)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    outer = e.embeddings(0) | e.heads_of("classifier.dense", "classifier.out_proj")
    outer |= {"entry_norm": (Part("emb_ln.weight"),), "entry_norm_bias": (Part("emb_ln.bias"),)}
    return e.placed(spec, "encoder.layers.", ATTENTION, MLP, outer)
