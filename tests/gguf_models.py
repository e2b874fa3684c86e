"""Models of the zoo that a GGUF file can say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import zoo

UNBOUNDED = {"time_step_limit": [0.0, float("inf")]}
GEMMA = zoo.GEMMA | {"query_pre_attn_scalar": 16}
HYBRID = [*["linear_attention"] * 2, "full_attention", "linear_attention"]
# The zoo's models with what a GGUF cannot say left out: windows of Llama's kin, Gemma's own query scale, step limits.
MODELS: dict[str, Callable[[], Any]] = {
    **{name: zoo.ZOO[name] for name in ("llama", "llama_bias_yarn_tied", "llama_linear", "qwen2_tied", "qwen3")},
    **{name: zoo.ZOO[name] for name in ("phi3", "phi3_longrope", "olmo2", "olmo2_bias_tied", "mixtral_tied", "olmoe")},
    **{name: zoo.ZOO[name] for name in ("granitemoe", "granitemoe_tied")},
    "mistral": zoo._causal("Mistral", head_dim=16, sliding_window=None),
    "gemma2": zoo._causal("Gemma2", **GEMMA, attn_logit_softcapping=4.0, final_logit_softcapping=6.0),
    "gemma3": lambda: zoo._random(
        "Gemma3Text", "Gemma3ForCausalLM", GEMMA | {"num_hidden_layers": 6, "rope_parameters": zoo.GEMMA3_ROPES}, 2
    ),
    "smollm3": zoo._causal("SmolLM3", num_hidden_layers=5),
    "mixtral": zoo._causal(
        "Mixtral", head_dim=16, sliding_window=None, intermediate_size=32, num_local_experts=5, **zoo.EXPERTS
    ),
    "qwen3_moe": zoo._causal(
        "Qwen3Moe", head_dim=16, num_experts=6, moe_intermediate_size=16, norm_topk_prob=True, **zoo.EXPERTS
    ),
    "granite": zoo._causal(
        "GraniteMoeHybrid",
        **zoo.GRANITE | {"num_local_experts": 0},
        layer_types=["full_attention"] * 3,
        shared_intermediate_size=48,
        position_embedding_type="rope",
    ),
    "granitemoehybrid": zoo._causal(
        "GraniteMoeHybrid", **zoo.GRANITE, **zoo.MAMBA | UNBOUNDED, layer_types=HYBRID[1:], shared_intermediate_size=32
    ),
    "granitemoehybrid_dense": zoo._causal(
        "GraniteMoeHybrid",
        1,
        **zoo.GRANITE | {"num_local_experts": 0},
        **zoo.MAMBA | UNBOUNDED | {"mamba_n_groups": 1},
        num_hidden_layers=4,
        layer_types=HYBRID,
        shared_intermediate_size=48,
        tie_word_embeddings=True,
    ),
    "lfm2": zoo.ZOO["lfm2"],
    "bamba": zoo._causal(
        "Bamba",
        **zoo.MAMBA | UNBOUNDED,
        hidden_size=64,
        num_attention_heads=2,
        num_key_value_heads=1,
        attn_layer_indices=[1],
        attention_bias=True,
        mlp_bias=True,
    ),
}
