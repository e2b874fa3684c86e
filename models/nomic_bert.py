"""Nomic BERT (nomic-embed-text): BERT with rotary positions and a gated feed-forward, without biases; in version 2 with
biases, and with experts in every other layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgedec.models import ArchitectureFacts, Part, Source
from edgedec.models import _encoders as e
from edgedec.models._common import ConfigReader
from edgedec.models._rope_encoders import RopeEncoderShape, rope_encoder
from edgedec.spec import Mlp, ModelSpec, Moe

FACTS = ArchitectureFacts(e.IGNORED, prefixes=("nomic_bert.", "bert."), encodes=True)
SHAPE = RopeEncoderShape(1000.0, True, "silu", False, False, False, "NomicBertForSequenceClassification", types=2)
# Of version 2, whose experts stand in layers 1, 3, ...
MIXED = replace(SHAPE, gated=False, act="gelu", attention_bias=True, up_bias=True, down_bias=True)
ATTENTION: e.Places = {
    "qkv": ("attn.Wqkv.weight",),
    "qkv_bias": ("attn.Wqkv.bias",),
    "o": ("attn.out_proj.weight",),
    "o_bias": ("attn.out_proj.bias",),
    "after_norm": ("norm1.weight",),
    "after_norm_bias": ("norm1.bias",),
}
NORM: e.Places = {"after_norm": ("norm2.weight",), "after_norm_bias": ("norm2.bias",)}
MLP: e.Places = {
    "gate_up": ("mlp.fc12.weight", "mlp.fc11.weight"),
    "up": ("mlp.fc1.weight",),
    "up_bias": ("mlp.fc1.bias",),
    "down": ("mlp.fc2.weight",),
    "down_bias": ("mlp.fc2.bias",),
    **NORM,
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
    "causal": False,
    "parallel_block": False,
    "prenorm": False,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True,
    "use_rms_norm": False,
}
# Facts that one of the versions has, and what the other has.
OF_DENSE: dict[str, Any] = {
    "activation_function": "swiglu",
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "qkv_proj_bias": False,
}
OF_MIXED: dict[str, Any] = {
    "activation_function": "gelu",
    "mlp_fc1_bias": True,
    "mlp_fc2_bias": True,
    "qkv_proj_bias": True,
    "expert_choice_router": False,
    "ffn_div": 1,
    "moe_normalize_expert_weights": False,
    "num_shared_experts": 0,
}
UNUSED = (
    *("dense_seq_output", "fused_bias_fc", "fused_dropout_add_ln", "max_trained_positions", "pad_vocab_size_multiple"),
    *("parallel_block_tied_norm", "reorder_and_upcast_attn", "summary_activation", "summary_first_dropout"),
    *("summary_proj_to_labels", "summary_type", "summary_use_proj", "use_flash_attn", "use_xentropy"),
    *("add_pooling_layer", "moe_impl"),
)


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(_plain(config))
    experts, every = r.maybe_whole("num_experts", 0, least=0), r.maybe_whole("moe_every_n_layers", 0, least=0)
    if not experts or not every:
        return rope_encoder(r, context, SHAPE)
    used, bias = r.whole("moe_top_k"), r.flag("experts_bias", True)
    found = rope_encoder(r, context, MIXED)
    attention, mlp = found.layers[0]
    assert isinstance(mlp, Mlp)
    moe = Moe(experts, used, mlp.inner_size, normalize=False, gated=False, sum_bias=bias, activation=mlp.activation,
              norm="none", after="layer")  # fmt: skip
    layers = [(attention, moe if i % every == 1 else mlp) for i in range(found.n_layers)]
    return replace(found, layers=tuple(layers)).check(r.where)


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config in BERT's words."""
    if "n_embd" not in config:
        return dict(config)
    r = ConfigReader(config)
    mixed = bool(config.get("num_experts") and config.get("moe_every_n_layers"))
    fixed = FIXED | (OF_MIXED if mixed else OF_DENSE)
    for key, value in fixed.items():
        if config.get(key, value) not in (value, value or None):
            raise r.fail(key, f"must be {value!r}, found {config[key]!r}")
    left = {key: value for key, value in config.items() if key not in fixed and key not in UNUSED}
    return {NAMES.get(key, key): value for key, value in left.items()}


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    outer = e.embeddings(0) | e.heads_of("classifier.dense", "classifier.out_proj")
    outer |= {"entry_norm": (Part("emb_ln.weight"),), "entry_norm_bias": (Part("emb_ln.bias"),)}
    moe = next((block for block in spec.blocks if isinstance(block, Moe)), None)
    return e.placed(spec, "encoder.layers.", ATTENTION, MLP, outer, _experts(moe) if moe else None)


def _experts(moe: Moe) -> e.Places:
    """An expert's second matrix is stored as its first one is, a row a channel of it."""
    rows = [(i * moe.inner_size, (i + 1) * moe.inner_size) for i in range(moe.n_experts)]
    return {
        "router": ("mlp.router.layer.weight",),
        "up": ("mlp.experts.mlp.w1",),
        "down": tuple(Part("mlp.experts.mlp.w2", span, transposed=True) for span in rows),
        "sum_bias": ("mlp.experts.bias",),
        **NORM,
    }
