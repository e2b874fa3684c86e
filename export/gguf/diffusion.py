"""The config.json for the diffusion models of GGUF files: Dream, LLaDA and LLaDA-MoE, as llama.cpp converts them.

`tokenizer.ggml.mask_token_id` is the mask, `diffusion.shift_logits` says whether a row gives the token after its own.
"""

from __future__ import annotations

from typing import Any

from edgedec.export.gguf.metadata import GgufFacts

Config = dict[str, Any]
_SHIFT, _MASK = "diffusion.shift_logits", "tokenizer.ggml.mask_token_id"
_ARCHITECTURES = ("dream", "llada", "llada-moe")


def diffusion_config(f: GgufFacts, architecture: str) -> Config:
    """The entries of how it is decoded; none for an autoregressive model."""
    if architecture not in _ARCHITECTURES:
        return {}
    found: Config = {}
    mask, shift = f.file.metadata.get(_MASK), f.file.metadata.get(_SHIFT)
    if mask is not None:
        if type(mask) is not int:
            raise f.fail(_MASK, f"must be a whole number, found {mask!r:.40}")
        found["mask_token_id"] = mask
    if shift is not None:
        if type(shift) is not bool:
            raise f.fail(_SHIFT, f"must be true or false, found {shift!r:.40}")
        found["diffusion"] = {"shift": shift}
    return found


def llada(f: GgufFacts, common: Config, biased: bool) -> Config:
    """Under the names of LLaDA's own config."""
    if "rope_scaling" in common or "partial_rotary_factor" in common:
        raise f.fail(f.name("rope.scaling.type"), "is set: LLaDA turns whole heads, unscaled")
    return {
        "model_type": "llada",
        "block_type": "llama",
        "layer_norm_type": "rms",
        "include_bias": False,
        "bias_for_layer_norm": False,
        "include_qkv_bias": biased,
        "rope": True,
        "activation_type": "silu",
        "vocab_size": common["vocab_size"],
        "d_model": common["hidden_size"],
        "n_layers": common["num_hidden_layers"],
        "n_heads": common["num_attention_heads"],
        "n_kv_heads": common["num_key_value_heads"],
        "mlp_hidden_size": common["intermediate_size"],
        "max_sequence_length": common["max_position_embeddings"],
        "rms_norm_eps": common["rms_norm_eps"],
        "rope_theta": common["rope_theta"],
        "weight_tying": common["tie_word_embeddings"],
    }


def llada_moe(f: GgufFacts, common: Config, experts: int, biased: bool) -> Config:
    found = {key: value for key, value in common.items() if key != "intermediate_size"}
    return found | {
        "num_experts": experts,
        "num_experts_per_tok": f.whole("expert_used_count", least=1),
        "expert_intermediate_size": f.whole("expert_feed_forward_length", least=1),
        "attention_bias": biased,
    }
