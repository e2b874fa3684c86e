"""What `gguf_architectures` writes of mixtures of experts and of hybrids: the models, their metadata, and the tensors
that llama.cpp's converter changes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import zoo
from numpy.typing import NDArray

Array = NDArray[np.float32]
Tensors = list[tuple[str, Array]]

# llama.cpp's name of each, and the model: the zoo's, without what a GGUF cannot say.
MODELS: dict[str, tuple[str, Callable[[], Any]]] = {
    "dots1": ("dots1", zoo._causal(
        "Dots1", head_dim=16, norm_topk_prob=True, sliding_window=None, attention_bias=True, **zoo.DEEPSEEK_EXPERTS
    )),
    "minimax_m2": ("minimax-m2", zoo.ZOO["minimax_m2"]),
    "ernie4_5_moe": ("ernie4_5-moe", zoo.ZOO["ernie4_5_moe"]),
    "ernie4_5_moe_tied": ("ernie4_5-moe", zoo.ZOO["ernie4_5_moe_tied"]),
    "hunyuan_v1_moe": ("hunyuan-moe", zoo._causal(
        "HunYuanMoEV1", hidden_size=64, head_dim=24, intermediate_size=16, num_experts=5, moe_topk=2, num_hidden_layers=2
    )),
    "olmo3": ("olmo2", zoo.ZOO["olmo3"]),
    "jamba": ("jamba", zoo._causal(
        "Jamba", **zoo.EXPERTS, intermediate_size=32, num_hidden_layers=4, num_experts=5, attn_layer_period=3,
        attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=0, mamba_d_state=12, mamba_d_conv=3,
        mamba_expand=3, mamba_dt_rank=5,
    )),
    "jamba_dense": ("jamba", zoo.ZOO["jamba_dense"]),
}  # fmt: skip


def own(c: Any) -> dict[str, Any]:
    """The metadata of a model of these, but for what all have."""
    return OWN[c.model_type](c) if c.model_type in OWN else {}


def _experts(n: int, used: int, inner: int) -> dict[str, Any]:
    return {"expert_count": n, "expert_used_count": used, "expert_feed_forward_length": inner}


def _dots1(c: Any) -> dict[str, Any]:
    return _experts(c.n_routed_experts, c.num_experts_per_tok, c.moe_intermediate_size) | {
        "expert_shared_count": c.n_shared_experts,
        "leading_dense_block_count": c.first_k_dense_replace,
        "expert_weights_scale": float(c.routed_scaling_factor),
        "expert_weights_norm": c.norm_topk_prob,
        "expert_gating_func": 2,
        "expert_group_count": c.n_group,
        "expert_group_used_count": c.topk_group,
    }


def _minimax_m2(c: Any) -> dict[str, Any]:
    return _experts(c.num_local_experts, c.num_experts_per_tok, c.intermediate_size) | {"expert_gating_func": 2}


def _ernie(c: Any) -> dict[str, Any]:
    return _experts(c.moe_num_experts, c.moe_k, c.moe_intermediate_size) | {
        "interleave_moe_layer_step": c.moe_layer_interval,
        "leading_dense_block_count": c.moe_layer_start_index,
        "expert_shared_count": c.moe_num_shared_experts,
        "expert_shared_feed_forward_length": c.intermediate_size // c.num_key_value_heads,  # as it is written
    }


def _hunyuan(c: Any) -> dict[str, Any]:
    shared = {"expert_shared_count": 1, "expert_shared_feed_forward_length": c.intermediate_size}
    return _experts(c.num_experts, c.moe_topk, c.intermediate_size) | shared


def _olmo3(c: Any) -> dict[str, Any]:
    rope = c.rope_parameters["full_attention"]
    return {
        "attention.sliding_window": c.sliding_window,
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in c.layer_types],
        "rope.freq_base": rope["rope_theta"],
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": rope["factor"],
        "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
    }


def _jamba(c: Any) -> dict[str, Any]:
    attends = [i % c.attn_layer_period == c.attn_layer_offset for i in range(c.num_hidden_layers)]
    return {
        "attention.head_count_kv": [c.num_key_value_heads * on for on in attends],
        "ssm.conv_kernel": c.mamba_d_conv,
        "ssm.inner_size": c.mamba_expand * c.hidden_size,
        "ssm.state_size": c.mamba_d_state,
        "ssm.time_step_rank": c.mamba_dt_rank,
        "expert_count": c.num_experts if c.num_experts > 1 else 0,
        "expert_used_count": c.num_experts_per_tok,
    }


OWN: dict[str, Callable[[Any], dict[str, Any]]] = {
    "dots1": _dots1,
    "minimax_m2": _minimax_m2,
    "ernie4_5_moe": _ernie,
    "hunyuan_v1_moe": _hunyuan,
    "olmo3": _olmo3,
    "jamba": _jamba,
}


def changed(name: str, values: Array, names: Any, c: Any) -> Tensors | None:
    """A tensor by ggml's name as the converter writes it; None: as it writes all."""
    if name.endswith("moe_statics.e_score_correction_bias"):
        return [(f"{_layer(name)}.exp_probs_b.bias", values.reshape(-1))]
    return None


def _layer(name: str) -> str:
    return "blk." + re.search(r"\.(\d+)\.", name)[1]  # type: ignore[index]
