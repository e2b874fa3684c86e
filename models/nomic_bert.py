"""Nomic BERT (nomic-embed-text): BERT with rotary positions and a gated feed-forward, without biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Part, Source
from edgedec.models import _encoders as e
from edgedec.models._common import ConfigReader
from edgedec.models._rope_encoders import RopeEncoderShape, rope_encoder
from edgedec.spec import ModelSpec

FACTS = ArchitectureFacts(e.IGNORED, prefixes=("nomic_bert.", "bert."), encodes=True)
SHAPE = RopeEncoderShape(1000.0, True, "silu", False, False, False, "NomicBertForSequenceClassification", types=2)
ATTENTION: e.Places = {
    "qkv": ("attn.Wqkv.weight",),
    "o": ("attn.out_proj.weight",),
    "after_norm": ("norm1.weight",),
    "after_norm_bias": ("norm1.bias",),
}
MLP: e.Places = {
    "gate_up": ("mlp.fc12.weight", "mlp.fc11.weight"),
    "down": ("mlp.fc2.weight",),
    "after_norm": ("norm2.weight",),
    "after_norm_bias": ("norm2.bias",),
}
# The model's own code names things as GPT-2 does: those names, and the facts that it must have.
NAMES = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
}
FIXED: dict[str, Any] = {
    "activation_function": "swiglu",
    "causal": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "parallel_block": False,
    "prenorm": False,
    "qkv_proj_bias": False,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True,
    "use_rms_norm": False,
}
UNUSED = (
    *("dense_seq_output", "fused_bias_fc", "fused_dropout_add_ln", "max_trained_positions", "pad_vocab_size_multiple"),
    *("parallel_block_tied_norm", "reorder_and_upcast_attn", "summary_activation", "summary_first_dropout"),
    *("summary_proj_to_labels", "summary_type", "summary_use_proj", "use_flash_attn", "use_xentropy", "num_experts"),
)


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    return rope_encoder(ConfigReader(_plain(config)), context, SHAPE)


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config in BERT's words."""
    if "n_embd" not in config:
        return dict(config)
    r = ConfigReader(config)
    for key, value in FIXED.items():
        if config.get(key, value) != value:
            raise r.fail(key, f"must be {value!r}, found {config[key]!r}")
    left = {key: value for key, value in config.items() if key not in FIXED and key not in UNUSED}
    return {NAMES.get(key, key): value for key, value in left.items()}


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    outer = e.embeddings(0) | e.heads_of("classifier.dense", "classifier.out_proj")
    outer |= {"entry_norm": (Part("emb_ln.weight"),), "entry_norm_bias": (Part("emb_ln.bias"),)}
    return e.placed(spec, "encoder.layers.", ATTENTION, MLP, outer)
