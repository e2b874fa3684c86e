"""Small random models of every architecture, with nothing left at a default that would hide a mistake.

Widths are odd-ish, heads are grouped, biases and norms are random, windows are short, ropes are scaled.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the model zoo is built with torch")
transformers = pytest.importorskip("transformers", reason="the model zoo is built with transformers")
import mimo  # noqa: E402
import minicpm  # noqa: E402
import phi4flash  # noqa: E402
import rwkv7  # noqa: E402
import smallthinker  # noqa: E402
import unixcoder  # noqa: E402
from checkpoints import LLAMA3  # noqa: E402
from zoo_golden import neutral, spread  # noqa: E402

SIZES: dict[str, Any] = mimo.SMALL | {
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 24,
    "beta_fast": 4.0,
    "beta_slow": 1.0,
}
# Phi: a quarter of the head passes unrotated, and both sets of divisors differ from one.
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.1, 1.25, 1.5, 1.75, 2.0],
    "long_factor": [1.0, 1.5, 2.5, 4.0, 6.0, 9.0],
}
PHIMOE_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 72,
    "short_mscale": 1.2,
    "long_mscale": 1.2,
    "short_factor": [1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0],
    "long_factor": [1.0, 1.5, 2.5, 4.0, 6.0, 9.0, 11.0, 14.0],
}
GEMMA = SIZES | {
    "head_dim": 16,
    "query_pre_attn_scalar": 24,
    "sliding_window": 5,
    "tie_word_embeddings": True,
}
GEMMA3_ROPES = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 4.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
OLMO3_ROPES = {
    "full_attention": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 24},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
# Heads of full layers are wider, and the last layers read the slots of two kinds.
GEMMA4 = SIZES | {
    "num_key_value_heads": 2,
    "head_dim": 16,
    "global_head_dim": 32,
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "sliding_window": 5,
    "hidden_size_per_layer_input": 12,
    "vocab_size_per_layer_input": SIZES["vocab_size"],
    "num_kv_shared_layers": 3,
    "final_logit_softcapping": 8.0,
    "tie_word_embeddings": True,
}
# Sizes of feed-forwards and shares of their gates differ, tokens are missing in the table of layers, and the last
# layers read the slots of two kinds.
GEMMA3N = SIZES | {
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "intermediate_size": [72, 56, 72, 88, 72, 40],
    "activation_sparsity_pattern": [0.7, 0.0, 0.85, 0.0, 0.3, 0.0],
    "sliding_window": 5,
    "hidden_size_per_layer_input": 12,
    "vocab_size_per_layer_input": 90,
    "num_kv_shared_layers": 3,
    "laurel_rank": 7,
    "final_logit_softcapping": 8.0,
    "tie_word_embeddings": True,
}
# As the larger sizes: full layers have fewer kv heads, whose keys are the values too.
GEMMA4_LARGE = GEMMA4 | {
    "num_hidden_layers": 3,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "hidden_size_per_layer_input": 0,
    "num_kv_shared_layers": 0,
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 1,
    "hidden_size": 64,
}
# The other sizes are those of its config in `rwkv7.py`, where all ranks differ.
RWKV = {key: SIZES[key] for key in ("vocab_size", "hidden_size", "num_hidden_layers", "bos_token_id", "eos_token_id")}
# And of `phi4flash.py`.
PHI4FLASH = {key: SIZES[key] for key in ("vocab_size", "bos_token_id", "eos_token_id")}
HEADS = {"num_key_value_heads": 4}
# Two blocks of weights in turn, of which the first is used twice; steps that the limit clips; two groups.
ZAMBA2 = SIZES | {
    "num_key_value_heads": 4,
    "num_hidden_layers": 4,
    "layers_block_type": ["mamba", "hybrid", "hybrid", "hybrid"],
    "num_mem_blocks": 2,
    "adapter_rank": 5,
    "n_mamba_heads": 8,
    "mamba_d_state": 12,
    "mamba_ngroups": 2,
    "mamba_d_conv": 3,
    "time_step_min": 0.3,
}
# As the authors' code sets it.
DECODES = {"is_decoder": True, "hidden_act": "gelu"}
# Half of this is the window.
MODERNBERT = {
    "pad_token_id": 0,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    "num_hidden_layers": 4,
    "local_attention": 10,
    "hidden_activation": "gelu",
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 4e4},
        "sliding_attention": {"rope_type": "linear", "rope_theta": 1e3, "factor": 2.0},
    },
}
# Written here, where transformers has no class.
OWN = {"Rwkv7": rwkv7, "MiniCPM": minicpm, "Phi4Flash": phi4flash, "SmallThinker": smallthinker}
OWN["Unixcoder"] = unixcoder
SMALLTHINKER = {"num_hidden_layers": 5, "hidden_size": 64, "intermediate_size": None}
MINICPM = {"scale_emb": 3, "scale_depth": 1.2, "dim_model_base": 24}
BLOCKFFN_LINEAR = {
    key: minicpm.BLOCKS[key]
    for key in ("expert_size", "num_experts", "router_act", "norm_after_router", "norm_scale", "block_implementation")
} | {"ffn_type": "block_linear", "hidden_size": 64, "intermediate_size": None}
NTK_ALPHA = {"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 50.0, "factor": 1.0}
# Of families whose configs know no other heads and sizes.
OLDER = {key: value for key, value in SIZES.items() if key not in ("num_key_value_heads", "intermediate_size")}
HALF_ROPE = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
# Experts of 16 or 32 inner dims: whole groups of 16 rows. More of them than are chosen, and no power of two.
EXPERTS = {"num_experts_per_tok": 2, "hidden_size": 64}
MULTIPLIERS = {
    "embedding_multiplier": 1.5,
    "attention_multiplier": 0.4,
    "residual_multiplier": 0.6,
    "logits_scaling": 1.25,
}
GRANITE = EXPERTS | MULTIPLIERS | {"intermediate_size": 16, "num_local_experts": 5}
# Two groups that share B and C, steps that the limits clip at both ends, a convolution of another size than the usual.
MAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_state": 12,
    "mamba_n_groups": 2,
    "mamba_d_conv": 3,
    "time_step_limit": [0.3, 1.0],
}
# DeepSeek's experts: of three groups the best two, weights of another sum than 1, the first layer without experts.
DEEPSEEK_EXPERTS = EXPERTS | {
    "n_routed_experts": 9,
    "n_group": 3,
    "topk_group": 2,
    "moe_intermediate_size": 16,
    "n_shared_experts": 2,
    "routed_scaling_factor": 1.5,
    "first_k_dense_replace": 1,
}
# A query is wider than a value, its turned part than the rest; the state is none of both.
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 40,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 12,
    "v_head_dim": 16,
}
# Of models of state-space blocks alone: they know no heads of attention, no MLP and no positions.
ALONE: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "state_size": 12,
    "conv_kernel": 3,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# Value heads that share key heads, of other widths than these; a convolution of another size than the usual.
DELTA = {
    "linear_num_value_heads": 6,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 20,
    "linear_conv_kernel_dim": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}
SHARED = {"num_experts": 5, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 24}
# Qwen's norms are stored less 1, but for that inside the delta rule; a quarter of a head turns.
QWEN = {"head_dim": 16, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}}
VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}


def _causal(name: str, seed: int = 0, **config: Any) -> Callable[[], Any]:
    return lambda: _random(name, f"{name}ForCausalLM", {**SIZES, **config}, seed)


def _alone(name: str, seed: int = 0, **config: Any) -> Callable[[], Any]:
    return lambda: _random(name, f"{name}ForCausalLM", {**ALONE, **config}, seed)


def _nemotron_h(seed: int, **config: Any) -> Callable[[], Any]:
    """Steps that the limit clips, heads of attention that do not fill the hidden size."""
    sizes = {key: value for key, value in ALONE.items() if key not in ("num_hidden_layers", "state_size")}
    sizes |= {
        "layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp", "linear_attention"],
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 128,
        "intermediate_size": 96,
        "ssm_state_size": 12,
        "mamba_num_heads": 6,
        "mamba_head_dim": 24,
        "n_groups": 2,
        "time_step_min": 0.5,
        "layer_norm_epsilon": 1e-3,
    }
    return lambda: _random("NemotronH", "NemotronHForCausalLM", {**sizes, **config}, seed)


def _kimi(seed: int, **config: Any) -> Callable[[], Any]:
    """Linear attention of other heads than the latent one; its convolutions are saved as thirds."""
    sizes = _without("max_position_embeddings") | {"model_max_length": SIZES["max_position_embeddings"]}
    sizes |= {key: value for key, value in LATENT.items() if key != "q_lora_rank"}
    sizes |= {
        "linear_num_heads": 5,
        "linear_head_dim": 12,
        "linear_conv_kernel_dim": 3,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "num_experts": 9,
        "num_experts_per_token": 2,
        "num_expert_group": 3,
        "topk_group": 2,
        "moe_intermediate_size": 16,
        "num_shared_experts": 2,
        "routed_scaling_factor": 1.5,
        "first_k_dense_replace": 1,
    }
    return lambda: _random("KimiLinear", "KimiLinearForCausalLM", {**sizes, **config}, seed)


def _older(name: str, seed: int = 0, **config: Any) -> Callable[[], Any]:
    head = "GPT2LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM"
    return lambda: _random(name, head, {**OLDER, **config}, seed)


def _gemma3_wrapper() -> Any:
    text = GEMMA | {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}
    config = {"text_config": text, "vision_config": VISION, "mm_tokens_per_image": 1}
    tokens = {"image_token_index": 90, "boi_token_index": 91, "eoi_token_index": 92}
    return _random("Gemma3", "Gemma3ForConditionalGeneration", config | tokens, 3)


def _gemma4(config: dict[str, Any], seed: int) -> Any:
    """The text model alone; its class is not named after its config."""
    return _random("Gemma4Text", "Gemma4ForCausalLM", config, seed)


def _gemma3n(config: dict[str, Any], seed: int) -> Any:
    """The text model alone; its class is not named after its config."""
    return _random("Gemma3nText", "Gemma3nForCausalLM", config, seed)


def _gemma4_wrapper() -> Any:
    """Multimodal, as it is published."""
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"num_key_value_heads": 2, "head_dim": 8, "global_head_dim": 8}
    config = {
        "text_config": GEMMA4 | {"use_double_wide_mlp": True, "pad_token_id": 0},
        "vision_config": vision,
        "audio_config": None,
    }
    return _random("Gemma4", "Gemma4ForConditionalGeneration", config, 5)


def _qwen3_5(seed: int) -> Any:
    """Multimodal, as it is published."""
    rope = QWEN["rope_parameters"] | {"mrope_section": [1, 1, 0], "mrope_interleaved": True}
    text = SIZES | DELTA | QWEN | {"rope_parameters": rope}
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 48}
    vision |= {"patch_size": 4, "num_position_embeddings": 16}
    return _random("Qwen3_5", "Qwen3_5ForConditionalGeneration", {"text_config": text, "vision_config": vision}, seed)


def _without(name: str) -> dict[str, Any]:
    return {key: value for key, value in SIZES.items() if key != name}


def _random(config_name: str, class_name: str, config: dict[str, Any], seed: int) -> Any:
    """A model in evaluation mode whose every parameter is drawn, norms around their neutral value too."""
    torch.manual_seed(seed)
    library = OWN.get(config_name, transformers)
    model = getattr(library, class_name)(getattr(library, f"{config_name}Config")(**config))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(neutral(name, config_name) + spread(name, weight.shape) * torch.randn_like(weight))
        for name, bias in model.named_buffers():  # of the choice of experts: trained, though not by gradients
            if name.endswith("e_score_correction_bias"):
                bias.copy_(0.3 * torch.randn_like(bias))
        for name, buffer in model.named_buffers():
            if name.endswith("expert_bias"):
                buffer.copy_(0.3 * torch.randn_like(buffer))
            if name.endswith("layer_scalar"):
                buffer.copy_(1 + 0.3 * torch.randn_like(buffer))
        model.get_input_embeddings().weight.mul_(0.5)
    model.config._attn_implementation = "eager"
    return model.eval()


ZOO: dict[str, Callable[[], Any]] = {
    # ---- dense decoders ----
    "granite": _causal("Granite", **MULTIPLIERS, attention_bias=True, mlp_bias=True),
    "olmo3": _causal("Olmo3", num_hidden_layers=4, sliding_window=5, rope_parameters=OLMO3_ROPES),
    "starcoder2": _causal("Starcoder2", sliding_window=6, tie_word_embeddings=False, norm_epsilon=1e-3),
    "starcoder2_tied": _causal("Starcoder2", 1, use_bias=False, hidden_act="relu"),
    "seed_oss": _causal("SeedOss", head_dim=16, attention_out_bias=True, mlp_bias=True),
    "exaone4": _causal("Exaone4", num_hidden_layers=4, sliding_window=5, sliding_window_pattern=3),
    "exaone4_full": _causal("Exaone4", 1, sliding_window=None, layer_types=["full_attention"] * 3),
    "glm": _causal("Glm", head_dim=24, rope_parameters=HALF_ROPE),
    "glm4": _causal("Glm4", head_dim=16, rope_parameters=HALF_ROPE, attention_bias=False),
    "ernie4_5": _causal("Ernie4_5", head_dim=20, use_bias=True, tie_word_embeddings=False),
    "helium": _causal("Helium", hidden_size=64, head_dim=16, attention_bias=True),
    "ministral": _causal(
        "Ministral",
        head_dim=16,
        sliding_window=5,
        layer_types=["sliding_attention", "full_attention"] * 2,
        num_hidden_layers=4,
    ),
    "gemma": _causal("Gemma", head_dim=16, attention_bias=True),
    "stablelm": _causal("StableLm", use_qkv_bias=True, rope_parameters=HALF_ROPE),
    "stablelm_beside": _causal("StableLm", 1, qk_layernorm=True, use_parallel_residual=True, rope_parameters=HALF_ROPE),
    "phi": _causal("Phi", rope_parameters=HALF_ROPE),
    "phi_normed": _causal("Phi", 1, rope_parameters=HALF_ROPE, qk_layernorm=True, hidden_act="gelu"),
    "gpt_neox": _causal("GPTNeoX", **HEADS, rope_parameters=HALF_ROPE),
    "gpt_neox_in_turn": _causal(
        "GPTNeoX", 1, **HEADS, rope_parameters=HALF_ROPE, use_parallel_residual=False, hidden_act="gelu_new"
    ),
    "cohere": _causal("Cohere", use_qk_norm=True, logit_scale=0.7, tie_word_embeddings=False),
    "cohere2": _causal("Cohere2", num_hidden_layers=4, sliding_window=5, logit_scale=0.7, attention_bias=True),
    "arcee": _causal("Arcee", head_dim=12, attention_bias=True, mlp_bias=True),
    "nemotron": _causal("Nemotron", head_dim=12, rope_parameters=HALF_ROPE, attention_bias=True, mlp_bias=True),
    "jais2": _causal("Jais2"),
    "olmo": _causal("Olmo", clip_qkv=0.9),
    "hunyuan_v1_dense": _causal("HunYuanDenseV1", head_dim=12, attention_bias=True, rope_parameters=NTK_ALPHA),
    "persimmon": _causal("Persimmon", **HEADS, rope_parameters=HALF_ROPE),
    "nanochat": _causal("NanoChat", final_logit_softcapping=3.0),
    "apertus": _causal("Apertus", attention_bias=True),
    "bitnet": _causal("BitNet"),
    "gpt2": _older("GPT2", n_inner=72, n_positions=96, scale_attn_by_inverse_layer_idx=True),
    "gpt_bigcode": _older("GPTBigCode", n_inner=72, n_positions=96),
    "gpt_bigcode_heads": _older("GPTBigCode", 1, multi_query=False, n_positions=96, tie_word_embeddings=False),
    "opt": _older("OPT", ffn_dim=72, activation_function="gelu", tie_word_embeddings=False),
    "bloom": _older("Bloom", num_attention_heads=6, max_position_embeddings=None),
    "mpt": _older(
        "Mpt", num_attention_heads=6, max_position_embeddings=None, max_seq_len=96, attn_config={"clip_qkv": 0.9}
    ),
    "gptj": _older("GPTJ", n_inner=72, n_positions=96, rotary_dim=8),
    "codegen": _older("CodeGen", n_inner=72, n_positions=96, rotary_dim=6),
    "falcon": _older("Falcon", ffn_hidden_size=72, multi_query=True, bias=True),
    "falcon_grouped": _older(
        "Falcon", 1, ffn_hidden_size=72, new_decoder_architecture=True, num_kv_heads=2, tie_word_embeddings=False
    ),
    "falcon_in_turn": _older("Falcon", 2, ffn_hidden_size=72, multi_query=False, parallel_attn=False),
    "ministral3": _causal(
        "Ministral3",
        head_dim=16,
        rope_parameters=YARN | {"original_max_position_embeddings": 48, "llama_4_scaling_beta": 0.1},
    ),
    "vaultgemma": _causal(
        "VaultGemma", **GEMMA, attn_logit_softcapping=4.0, final_logit_softcapping=6.0, attention_bias=True
    ),
    "llama": _causal("Llama", head_dim=20, rms_norm_eps=1e-5, rope_parameters=LLAMA3),
    "llama_bias_yarn_tied": _causal(
        "Llama", 1, attention_bias=True, mlp_bias=True, tie_word_embeddings=True, rope_parameters=YARN
    ),
    "llama_linear": _causal("Llama", 2, rope_parameters={"rope_type": "linear", "factor": 3.0, "rope_theta": 5e5}),
    "llama_dynamic": _causal("Llama", 3, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}),
    "mistral": _causal("Mistral", head_dim=16, sliding_window=7),
    "mistral_no_window": _causal("Mistral", 1, sliding_window=None),
    "qwen2": _causal("Qwen2", use_sliding_window=True, sliding_window=6, max_window_layers=1),
    "qwen2_tied": _causal("Qwen2", 1, tie_word_embeddings=True, sliding_window=6),
    "mimo": lambda: mimo.random(bos_token_id=1, eos_token_id=2),
    "qwen3": _causal("Qwen3", head_dim=16, tie_word_embeddings=True),
    "qwen3_bias_window": _causal(
        "Qwen3",
        1,
        head_dim=16,
        attention_bias=True,
        use_sliding_window=True,
        sliding_window=5,
        max_window_layers=2,
    ),
    "gemma2": _causal("Gemma2", **GEMMA, attn_logit_softcapping=4.0, final_logit_softcapping=6.0),
    "gemma2_no_caps": _causal(
        "Gemma2", 1, **GEMMA, attn_logit_softcapping=None, final_logit_softcapping=None, attention_bias=True
    ),
    "gemma3_text": lambda: _random(
        "Gemma3Text",
        "Gemma3ForCausalLM",
        GEMMA | {"num_hidden_layers": 6, "rope_parameters": GEMMA3_ROPES},
        2,
    ),
    "gemma3": _gemma3_wrapper,
    "gemma4": _gemma4_wrapper,
    "gemma4_text": lambda: _gemma4(GEMMA4 | {"attention_bias": True, "hidden_activation": "silu"}, 1),
    "gemma4_large": lambda: _gemma4(GEMMA4_LARGE | {"attention_bias": True}, 2),
    "gemma4_experts": lambda: _gemma4(
        GEMMA4_LARGE | {"enable_moe_block": True, "num_experts": 5, "top_k_experts": 2, "moe_intermediate_size": 16},
        3,
    ),
    "gemma3n_text": lambda: _gemma3n(GEMMA3N, 1),
    "gemma3n_active": lambda: _gemma3n(
        GEMMA3N
        | {"altup_num_inputs": 3, "altup_active_idx": 2, "altup_correct_scale": False, "attention_bias": True}
        | {"hidden_activation": "silu", "rms_norm_eps": 1e-3, "rope_parameters": GEMMA3_ROPES},
        2,
    ),
    "rwkv7": lambda: _random("Rwkv7", "Rwkv7ForCausalLM", RWKV | {"value_dim": [60] * 3}, 1),
    "minicpm": _causal("MiniCPM", **MINICPM),
    "blockffn": _causal("MiniCPM", 1, **MINICPM | minicpm.BLOCKS | {"hidden_size": 64, "tie_word_embeddings": False}),
    "smallthinker": _causal("SmallThinker", **SMALLTHINKER),
    "smallthinker_softmax": _causal(
        "SmallThinker",
        1,
        **SMALLTHINKER,
        tie_word_embeddings=False,
        moe_primary_router_apply_softmax=True,
        rope_layout=[1, 0, 1, 1, 0],
        sliding_window_layout=[1, 1, 0, 0, 1],
        moe_num_active_primary_experts=3,
    ),
    "blockffn_linear": _causal("MiniCPM", 2, **MINICPM | BLOCKFFN_LINEAR),
    "rwkv7_unnormed": lambda: _random(
        "Rwkv7",
        "Rwkv7ForCausalLM",
        RWKV | {"head_dim": 24, "norm_first": False, "intermediate_size": None, "hidden_ratio": 1.9, "norm_eps": 1e-3},
        2,
    ),
    "diffllama": _causal(
        "DiffLlama", num_attention_heads=8, num_key_value_heads=4, attention_bias=True, rms_norm_eps=1e-3
    ),
    "diffllama_single": _causal("DiffLlama", 1, num_key_value_heads=2, head_dim=20, tie_word_embeddings=True),
    "phi4flash": lambda: _random("Phi4Flash", "Phi4FlashForCausalLM", PHI4FLASH, 1),
    "phi4flash_long": lambda: _random(
        "Phi4Flash",
        "Phi4FlashForCausalLM",
        PHI4FLASH
        | {"num_hidden_layers": 12, "num_key_value_heads": 8, "sliding_window": [None, 4] * 3 + [None] * 6}
        | {"mamba_dt_rank": "auto", "mamba_proj_bias": False, "mlp_bias": False, "lm_head_bias": False},
        2,
    ),
    "phi3": _causal("Phi3", sliding_window=9, hidden_size=64, rope_parameters={"rope_type": "default"}),
    "phi3_longrope": _causal(
        "Phi3",
        1,
        hidden_size=64,
        original_max_position_embeddings=32,
        rope_parameters=LONGROPE,
        tie_word_embeddings=True,
    ),
    "smollm3": _causal("SmolLM3", num_hidden_layers=5, no_rope_layer_interval=3),
    "smollm3_window": _causal(
        "SmolLM3",
        1,
        tie_word_embeddings=False,
        use_sliding_window=True,
        sliding_window=4,
        no_rope_layers=[1, 0, 1],
    ),
    "olmo2": _causal("Olmo2", hidden_size=64),
    "olmo2_bias_tied": _causal("Olmo2", 1, attention_bias=True, tie_word_embeddings=True),
    "mixtral": _causal("Mixtral", head_dim=16, sliding_window=7, intermediate_size=32, num_local_experts=5, **EXPERTS),
    "mixtral_tied": _causal(
        "Mixtral",
        1,
        head_dim=16,
        intermediate_size=16,
        num_local_experts=3,
        **EXPERTS | {"num_experts_per_tok": 1},
        tie_word_embeddings=True,
    ),
    "qwen3_moe": _causal(
        "Qwen3Moe",
        head_dim=16,
        num_hidden_layers=4,
        num_experts=6,
        moe_intermediate_size=16,
        decoder_sparse_step=2,
        mlp_only_layers=[1],
        norm_topk_prob=True,
        **EXPERTS,
    ),
    "qwen3_moe_window": _causal(
        "Qwen3Moe",
        1,
        head_dim=16,
        num_experts=5,
        moe_intermediate_size=32,
        use_sliding_window=True,
        sliding_window=5,
        attention_bias=True,
        tie_word_embeddings=True,
        **EXPERTS | {"num_experts_per_tok": 3},
    ),
    "olmoe": _causal("Olmoe", intermediate_size=32, num_experts=6, **EXPERTS),
    "olmoe_normalized": _causal(
        "Olmoe", 1, intermediate_size=16, num_experts=5, norm_topk_prob=True, attention_bias=True, **EXPERTS
    ),
    "granitemoe": _causal("GraniteMoe", **GRANITE, attention_bias=True),
    "granitemoe_tied": _causal("GraniteMoe", 1, **GRANITE, tie_word_embeddings=True),
    "gpt_oss": _causal(
        "GptOss",
        head_dim=16,
        intermediate_size=24,
        num_local_experts=5,
        sliding_window=6,
        rope_parameters=YARN | {"truncate": False},
        **EXPERTS,
    ),
    "deepseek_v2": _causal(
        "DeepseekV2",
        **LATENT | {"q_lora_rank": None},
        **{k: v for k, v in DEEPSEEK_EXPERTS.items() if k not in ("n_group", "topk_group")},
        rope_parameters=YARN | {"mscale": 0.5, "mscale_all_dim": 0.8},
    ),
    "deepseek_v3": _causal(
        "DeepseekV3",
        **LATENT,
        **DEEPSEEK_EXPERTS,
        attention_bias=True,
        rms_norm_eps=1e-3,
        num_hidden_layers=2,
        rope_parameters=YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
    ),
    "glm4_moe_lite": _causal(
        "Glm4MoeLite",
        **LATENT,
        **{k: v for k, v in DEEPSEEK_EXPERTS.items() if k != "first_k_dense_replace"},
        mlp_layer_types=["sparse", "dense"],
        num_hidden_layers=2,
        norm_topk_prob=False,
        rope_interleave=False,
    ),
    "ernie4_5_moe": _causal(
        "Ernie4_5_Moe",
        head_dim=16,
        hidden_size=64,
        moe_num_experts=5,
        moe_k=2,
        moe_intermediate_size=16,
        moe_num_shared_experts=3,
        moe_layer_start_index=1,
        num_hidden_layers=2,
        tie_word_embeddings=False,
    ),
    "ernie4_5_moe_tied": _causal(
        "Ernie4_5_Moe",
        1,
        hidden_size=64,
        moe_num_experts=6,
        moe_k=3,
        moe_intermediate_size=32,
        moe_num_shared_experts=0,
        moe_layer_interval=2,
        num_hidden_layers=2,
    ),
    "youtu": _causal("Youtu", **LATENT, num_hidden_layers=2, hidden_size=64),
    "minicpm3": _causal(
        "MiniCPM3", **LATENT, hidden_size=64, scale_emb=3.0, scale_depth=0.9, dim_model_base=48, attention_bias=True
    ),
    "granitemoeshared": _causal(
        "GraniteMoeShared", 1, **GRANITE, shared_intermediate_size=48, attention_bias=True, num_hidden_layers=2
    ),
    "qwen2_moe": _causal(
        "Qwen2Moe",
        num_experts=5,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=48,
        num_hidden_layers=3,
        mlp_only_layers=[1],
        norm_topk_prob=True,
        use_sliding_window=True,
        sliding_window=6,
        **EXPERTS,
    ),
    "qwen2_moe_unbiased": _causal(
        "Qwen2Moe",
        1,
        num_experts=6,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=16,
        num_hidden_layers=2,
        qkv_bias=False,
        tie_word_embeddings=True,
        **EXPERTS,
    ),
    "phimoe": _causal(
        "Phimoe",
        **EXPERTS,
        intermediate_size=16,
        num_local_experts=5,
        num_hidden_layers=2,
        router_jitter_noise=0.3,
        attention_bias=True,
        lm_head_bias=True,
        rms_norm_eps=1e-3,
        max_position_embeddings=96,
        rope_parameters=PHIMOE_ROPE,
    ),
    "phimoe_window": _causal(
        "Phimoe",
        1,
        **EXPERTS,
        intermediate_size=32,
        num_local_experts=6,
        num_hidden_layers=2,
        sliding_window=6,
        hidden_act="gelu",
        tie_word_embeddings=True,
    ),
    "hunyuan_v1_moe": _causal(
        "HunYuanMoEV1",
        hidden_size=64,
        head_dim=24,
        intermediate_size=16,
        num_experts=5,
        moe_topk=2,
        num_hidden_layers=2,
        attention_bias=True,
        rope_parameters=NTK_ALPHA,
        tie_word_embeddings=True,
    ),
    "afmoe": _causal(
        "Afmoe",
        **EXPERTS,
        head_dim=24,
        num_experts=5,
        moe_intermediate_size=16,
        num_shared_experts=3,
        num_hidden_layers=4,
        num_dense_layers=2,
        global_attn_every_n_layers=3,
        sliding_window=5,
        route_scale=1.7,
        mup_enabled=True,
    ),
    "flex_olmo": _causal("FlexOlmo", intermediate_size=32, num_experts=5, num_hidden_layers=2, **EXPERTS),
    "glm4_moe": _causal(
        "Glm4Moe",
        head_dim=32,
        attention_bias=True,
        use_qk_norm=True,
        **DEEPSEEK_EXPERTS,
    ),
    "dots1": _causal(
        "Dots1",
        head_dim=16,
        norm_topk_prob=True,
        sliding_window=5,
        max_window_layers=2,
        attention_bias=True,
        **DEEPSEEK_EXPERTS,
    ),
    "minimax_m2": _causal(
        "MiniMaxM2",
        head_dim=32,
        partial_rotary_factor=0.5,
        intermediate_size=16,
        num_local_experts=5,
        num_hidden_layers=2,
        **EXPERTS,
    ),
    "granitemoehybrid": _causal(
        "GraniteMoeHybrid",
        **GRANITE,
        **MAMBA,
        layer_types=["linear_attention", "full_attention", "linear_attention"],
        shared_intermediate_size=32,
        position_embedding_type="rope",
        mamba_proj_bias=True,
    ),
    "granitemoehybrid_dense": _causal(
        "GraniteMoeHybrid",
        1,
        **GRANITE | {"num_local_experts": 0},
        **MAMBA | {"mamba_n_groups": 1, "time_step_limit": [0.0, float("inf")]},
        num_hidden_layers=4,
        layer_types=["linear_attention", "linear_attention", "full_attention", "linear_attention"],
        shared_intermediate_size=48,
        tie_word_embeddings=True,
    ),
    "mamba2": _alone(
        "Mamba2",
        num_heads=12,
        head_dim=8,
        n_groups=3,
        use_bias=True,
        time_step_limit=[0.3, 1.0],
    ),
    "mamba2_tied": _alone(
        "Mamba2", 3, num_heads=6, head_dim=24, expand=3, n_groups=1, conv_kernel=4, tie_word_embeddings=True
    ),
    "nemotron_h": _nemotron_h(0),
    "nemotron_h_biases": _nemotron_h(
        1, use_bias=True, mlp_bias=True, num_key_value_heads=1, time_step_min=0.1, head_dim=8, n_groups=3, conv_kernel=4
    ),
    "nemotron_h_experts": _nemotron_h(
        2,
        **EXPERTS | {"num_experts_per_tok": 3},
        layers_block_type=["linear_attention", "moe", "full_attention", "moe", "mlp"],
        n_routed_experts=10,
        n_group=5,
        topk_group=2,
        moe_intermediate_size=16,
        moe_shared_expert_intermediate_size=40,
        routed_scaling_factor=1.5,
        layer_norm_epsilon=1e-5,
    ),
    "nemotron_h_experts_gelu": _nemotron_h(
        3,
        **EXPERTS,
        layers_block_type=["moe", "full_attention", "linear_attention", "mlp", "moe"],
        n_routed_experts=5,
        moe_intermediate_size=32,
        moe_shared_expert_intermediate_size=16,
        norm_topk_prob=False,
        mlp_hidden_act="gelu",
    ),
    "jamba": _causal(
        "Jamba",
        **EXPERTS,
        intermediate_size=32,
        num_hidden_layers=4,
        num_experts=5,
        attn_layer_period=3,
        attn_layer_offset=1,
        expert_layer_period=2,
        expert_layer_offset=0,
        mamba_d_state=12,
        mamba_d_conv=3,
        mamba_expand=3,
        mamba_dt_rank=5,
        mamba_proj_bias=True,
        rms_norm_eps=0.01,
    ),
    "jamba_dense": _causal(
        "Jamba", 1, num_experts=1, attn_layer_period=3, attn_layer_offset=2, hidden_size=64, tie_word_embeddings=True
    ),
    "mamba": _alone("Mamba", 2, use_bias=True, time_step_rank=5, tie_word_embeddings=False),
    "mamba_tied": _alone("Mamba", 1, expand=3, conv_kernel=4),
    "falcon_mamba": _alone(
        "FalconMamba", time_step_rank=5, expand=16, intermediate_size=80, mixer_rms_eps=0.02, tie_word_embeddings=False
    ),
    "lfm2": _causal(
        "Lfm2",
        norm_eps=1e-4,
        conv_bias=True,
        conv_L_cache=4,
        block_multiple_of=8,
        block_ffn_dim_multiplier=1.3,
        layer_types=["conv", "full_attention", "conv"],
    ),
    "lfm2_final_sizes": _causal(
        "Lfm2", 1, block_auto_adjust_ff_dim=False, full_attn_idxs=[1], tie_word_embeddings=False
    ),
    "lfm2_moe": _causal(
        "Lfm2Moe",
        **EXPERTS,
        num_dense_layers=1,
        num_experts=5,
        moe_intermediate_size=16,
        routed_scaling_factor=0.7,
        layer_types=["conv", "full_attention", "conv"],
    ),
    "lfm2_moe_no_bias": _causal(
        "Lfm2Moe",
        1,
        **EXPERTS,
        num_dense_layers=0,
        num_experts=5,
        moe_intermediate_size=16,
        use_expert_bias=False,
        norm_topk_prob=False,
        layer_types=["full_attention", "conv", "conv"],
    ),
    "lfm3": _causal(
        "Lfm3",
        head_dim=16,
        norm_eps=1e-4,
        conv_bias=True,
        conv_L_cache=5,
        sliding_window=6,
        layer_types=["conv", "full_attention", "sliding_attention"],
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
            "full_attention": {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
        },
    ),
    "lfm3_plain": _causal(
        "Lfm3",
        1,
        head_dim=16,
        use_sandwich_norm=False,
        use_attention_gate=False,
        tie_word_embeddings=False,
        layer_types=["sliding_attention", "conv", "full_attention"],
    ),
    "qwen3_next": _causal(
        "Qwen3Next", 1, **EXPERTS | DELTA | SHARED | QWEN, norm_topk_prob=True, attention_bias=True, mlp_only_layers=[1]
    ),
    "qwen3_next_tied": _causal(
        "Qwen3Next", 1, **EXPERTS | DELTA | SHARED | QWEN, norm_topk_prob=False, tie_word_embeddings=True
    ),
    "qwen3_5": lambda: _qwen3_5(4),
    "qwen3_5_text": lambda: _random("Qwen3_5Text", "Qwen3_5ForCausalLM", SIZES | DELTA | QWEN, 5),
    "qwen3_5_moe_text": lambda: _random(
        "Qwen3_5MoeText", "Qwen3_5MoeForCausalLM", _without("intermediate_size") | EXPERTS | DELTA | SHARED | QWEN, 6
    ),
    # Equal sums of widths: transformers saves the convolutions of q, k and v as thirds.
    "olmo_hybrid": _causal("OlmoHybrid", **DELTA | {"linear_value_head_dim": 4}, hidden_size=64, attention_bias=True),
    "olmo_hybrid_turned": _causal(
        "OlmoHybrid",
        1,
        **DELTA | {"linear_value_head_dim": 4, "linear_allow_neg_eigval": False},
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        tie_word_embeddings=True,
    ),
    "kimi_linear": _kimi(0),
    "kimi_linear_low_queries": _kimi(
        1,
        q_lora_rank=40,
        attention_bias=True,
        moe_renormalize=False,
        num_expert_group=1,
        topk_group=1,
        linear_conv_kernel_dim=4,
        layer_types=["full_attention", "linear_attention", "linear_attention"],
    ),
    "falcon_h1": _causal(
        "FalconH1",
        **MAMBA,
        mamba_d_ssm=80,
        attention_bias=True,
        mlp_bias=True,
        embedding_multiplier=1.5,
        lm_head_multiplier=0.7,
        key_multiplier=0.6,
        attention_in_multiplier=1.3,
        attention_out_multiplier=0.8,
        ssm_in_multiplier=1.2,
        ssm_out_multiplier=0.9,
        ssm_multipliers=[0.5, 1.4, 0.75, 1.25, 2.0],
        mlp_multipliers=[1.6, 0.65],
    ),
    "falcon_h1_normed": _causal(
        "FalconH1",
        1,
        **MAMBA | {"mamba_n_heads": 6},
        mamba_d_ssm=None,
        mamba_proj_bias=True,
        projectors_bias=True,
        mamba_rms_norm=True,
        mamba_norm_before_gate=False,
        head_dim=16,
        lm_head_multiplier=0.5,
        tie_word_embeddings=True,
    ),
    "zamba2": lambda: _random(
        "Zamba2",
        "Zamba2ForCausalLM",
        ZAMBA2
        | {"use_shared_attention_adapter": True, "use_mem_rope": True, "add_bias_linear": True}
        | {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
        0,
    ),
    "unixcoder": lambda: _random(
        "Unixcoder",
        "UnixcoderForCausalLM",
        _without("num_key_value_heads") | {"pad_token_id": 4, "type_vocab_size": 3, "layer_norm_eps": 1e-2} | DECODES,
        0,
    ),
    "modernbert_decoder": lambda: _random(
        "ModernBertDecoder",
        "ModernBertDecoderForCausalLM",
        _without("num_key_value_heads")
        | MODERNBERT
        | {"norm_bias": True, "attention_bias": True, "mlp_bias": True, "classifier_bias": True, "norm_eps": 1e-3},
        0,
    ),
    "modernbert_decoder_plain": lambda: _random(
        "ModernBertDecoder",
        "ModernBertDecoderForCausalLM",
        _without("num_key_value_heads")
        | MODERNBERT
        | {"decoder_bias": False, "classifier_activation": "silu", "tie_word_embeddings": False},
        1,
    ),
    "bamba": _causal(
        "Bamba",
        **MAMBA,
        hidden_size=64,
        num_attention_heads=2,
        num_key_value_heads=1,
        attn_layer_indices=[1],
        attention_bias=True,
        mlp_bias=True,
    ),
    "bamba_tied": _causal(
        "Bamba",
        1,
        **MAMBA | {"mamba_d_head": 8, "mamba_n_heads": 16, "time_step_limit": [0.0, 0.7]},
        hidden_size=64,
        num_attention_heads=2,
        num_key_value_heads=2,
        attn_layer_indices=[0, 2],
        mamba_proj_bias=True,
        tie_word_embeddings=True,
    ),
}


def save(name: str, folder: Path, **options: Any) -> Any:
    """Build ZOO[name], save it under `folder` as safetensors, and return it. Options: save_pretrained's."""
    model = ZOO[name]()
    model.save_pretrained(folder, **options)
    return model


def small_llama() -> Any:
    """The config of a little Llama with grouped queries, nothing else about it special."""
    return transformers.LlamaConfig(
        vocab_size=97,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=128,
    )
