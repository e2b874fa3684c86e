"""The configs of decoders with latent attention (MLA) in GGUF files."""

from __future__ import annotations

from collections.abc import Callable

from edgedec.export.gguf.common import MAX_HEAD, Config, headless, of_experts, rows, some
from edgedec.export.gguf.metadata import GgufFacts
from edgedec.export.gguf.mixtures import SIGMOID, SOFTMAX, deepseek, scored
from edgedec.export.gguf.ropes import rope_config


def _heads(f: GgufFacts) -> Config:
    """The sizes of heads: files say those of what is cached as well, older ones only those of heads."""
    turned, rank = f.whole("rope.dimension_count", least=1, most=MAX_HEAD), f.whole("attention.kv_lora_rank", least=1)
    query, value = (
        f.whole(f"attention.{part}_length_mla", 0) or f.whole(f"attention.{part}_length", least=1, most=MAX_HEAD)
        for part in ("key", "value")
    )
    if query <= turned:
        raise f.fail(f.name("attention.key_length"), f"is {query}: of these {turned} turn, and some must not")
    return {
        "num_attention_heads": f.whole("attention.head_count", least=1),
        "kv_lora_rank": rank,
        "q_lora_rank": f.whole("attention.q_lora_rank", 0) or None,
        "qk_rope_head_dim": turned,
        "qk_nope_head_dim": query - turned,
        "v_head_dim": value,
    }


def _latent(f: GgufFacts, model_type: str) -> Config:
    found = headless(f, model_type) | _heads(f)
    return found | rope_config(f, found["qk_rope_head_dim"], found["max_position_embeddings"], alike=True)


def _deepseek2(f: GgufFacts) -> Config:
    """DeepSeek-V2 weighs experts by a softmax, V3 by a sigmoid and a bias; a model of the family may have none."""
    if not f.whole("expert_count", 0):
        return _latent(f, "youtu")
    sigmoid = scored(f, SIGMOID if some(f, "exp_probs_b.bias") else SOFTMAX) == SIGMOID
    experts = deepseek(f)
    if not sigmoid and (experts["n_group"] > 1 or experts.pop("norm_topk_prob")):
        raise f.fail(f.name("expert_group_count"), "or expert_weights_norm is set: not supported with a softmax")
    return _latent(f, "deepseek_v3" if sigmoid else "deepseek_v2") | experts


def _minicpm3(f: GgufFacts) -> Config:
    """The multipliers are those that llama.cpp takes for all such files."""
    return _latent(f, "minicpm3") | {"scale_emb": 12.0, "scale_depth": 1.4, "dim_model_base": 256}


def _kimi_linear(f: GgufFacts) -> Config:
    """Layers without keys and values follow the delta rule. Nothing turns; the weights of chosen experts sum to 1."""
    if scored(f, SIGMOID) != SIGMOID:
        raise f.fail(f.name("expert_gating_func"), "is not 2, a sigmoid")
    found, experts = headless(f, "kimi_linear") | _heads(f), of_experts(f)
    attends = f.each("attention.head_count_kv", found["num_hidden_layers"])
    delta = next((f"blk.{i}.ssm_beta.weight" for i, on in enumerate(attends) if not on), "blk.0.ssm_beta.weight")
    return found | {
        "layer_types": ["full_attention" if on else "linear_attention" for on in attends],
        "linear_num_heads": rows(f, delta),
        "linear_head_dim": f.whole("kda.head_dim", least=1),
        "linear_conv_kernel_dim": f.whole("ssm.conv_kernel", least=1),
        "num_experts": experts["num_experts"],
        "num_experts_per_token": experts["num_experts_per_tok"],
        "moe_intermediate_size": experts["moe_intermediate_size"],
        "num_shared_experts": f.whole("expert_shared_count", least=1),
        "first_k_dense_replace": f.whole("leading_dense_block_count", 0),
        "routed_scaling_factor": f.number("expert_weights_scale", 0.0) or 1.0,
        "num_expert_group": f.whole("expert_group_count", 0) or 1,
        "topk_group": f.whole("expert_group_used_count", 0) or 1,
        "moe_renormalize": True,
    }


LATENT: dict[str, Callable[[GgufFacts], Config]] = {
    "deepseek2": _deepseek2,
    "minicpm3": _minicpm3,
    "kimi-linear": _kimi_linear,
}
