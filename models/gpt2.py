"""GPT-2: learned positions, LayerNorms, biases everywhere; its matrices are stored as (in, out)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgedec.models import ArchitectureFacts, Part, Source
from edgedec.models._common import ConfigReader, activation, heads
from edgedec.models._dense import absolute, layer_norm, plain
from edgedec.models._names import Names, Paths, named
from edgedec.spec import Attention, Mlp, ModelSpec

FACTS = ArchitectureFacts((r".*\.attn\.(masked_)?bias", r"lm_head\.weight"), prefixes=("transformer.",))
# As GPT-2's family says it, and as others do.
WORDS = {
    **{"n_embd": "hidden_size", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers"},
    **{"n_inner": "intermediate_size", "n_positions": "max_position_embeddings", "activation_function": "hidden_act"},
}
FIXED: dict[str, Any] = {"scale_attn_weights": True, "add_cross_attention": False}
UNUSED = (
    *("n_ctx", "n_special", "predict_special_tokens", "reorder_and_upcast_attn", "summary_type", "summary_use_proj"),
    *("summary_activation", "summary_proj_to_labels", "summary_first_dropout", "afn", "gradient_checkpointing"),
)
OUTER = {
    **{"embed": "transformer.wte.weight", "positions": "transformer.wpe.weight", "head": "lm_head.weight"},
    **{"final_norm": "transformer.ln_f.weight", "final_norm_bias": "transformer.ln_f.bias"},
    "head_bias": "lm_head.bias",
}


def inner_size(r: ConfigReader) -> int:
    """Four times the state where nothing is said."""
    return r.maybe_whole("intermediate_size") or 4 * r.whole("hidden_size")


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(plain(config, WORDS, FIXED, UNUSED))
    by_layer = r.flag("scale_attn_by_inverse_layer_idx", False)
    attention = Attention(**heads(r), rope=None, qkv_bias=True, o_bias=True, norm="layer")
    act = activation(r, default="gelu_new")
    mlp = Mlp(inner_size(r), gated=False, activation=act, bias=True, norm="layer")
    scales = [attention.scale / (i + 1 if by_layer else 1) for i in range(r.whole("num_hidden_layers"))]
    layers = [(replace(attention, scale=scale), mlp) for scale in scales]
    return absolute(r, layers, context, tied=True, eps_key="layer_norm_epsilon")


def _linear(tensor: str, name: str) -> Paths:
    return {tensor: (Part(f"{name}.weight", transposed=True),), f"{tensor}_bias": (f"{name}.bias",)}


NAMES: Names = {
    "attention": layer_norm("norm", "ln_1") | _linear("qkv", "attn.c_attn") | _linear("o", "attn.c_proj"),
    "mlp": layer_norm("norm", "ln_2") | _linear("up", "mlp.c_fc") | _linear("down", "mlp.c_proj"),
}


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    found = named(spec, NAMES, outer=OUTER, layers="transformer.h.")
    return found | {"positions": (Part(OUTER["positions"], (0, spec.context_length)),)}
