"""What `gguf_architectures` writes of mixtures of experts and of latent attention: the models, their metadata, and the
tensors that llama.cpp's converter changes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import zoo
from numpy.typing import NDArray

Array = NDArray[np.float32]
Tensors = list[tuple[str, Array]]

ALIKE = {"mscale": 0.8, "mscale_all_dim": 0.8}  # of two scales a file has the one that scores get
MSCALES = ("short_mscale", "long_mscale")
STRETCHED = float(np.sqrt(1 + np.log(96 / 72) / np.log(72)))  # as LongRoPE has it for these lengths
XIELU = ("alpha_p", "alpha_n", "beta", "eps")
# llama.cpp's name of each, and the model: the zoo's, without what a GGUF cannot say.
MODELS: dict[str, tuple[str, Callable[[], Any]]] = {
    "dots1": ("dots1", zoo._causal(
        "Dots1", head_dim=16, norm_topk_prob=True, sliding_window=None, attention_bias=True, **zoo.DEEPSEEK_EXPERTS
    )),
    "minimax_m2": ("minimax-m2", zoo.ZOO["minimax_m2"]),
    "ernie4_5_moe": ("ernie4_5-moe", zoo.ZOO["ernie4_5_moe"]),
    "ernie4_5_moe_tied": ("ernie4_5-moe", zoo.ZOO["ernie4_5_moe_tied"]),
    "hunyuan_v1_moe": ("hunyuan-moe", zoo._causal(
        "HunYuanMoEV1", hidden_size=64, head_dim=24, intermediate_size=16, num_experts=5, moe_topk=2,
        num_hidden_layers=2,
    )),
    "olmo3": ("olmo2", zoo.ZOO["olmo3"]),
    "deepseek_v2": ("deepseek2", zoo._causal(
        "DeepseekV2", **zoo.LATENT | {"q_lora_rank": None}, rope_parameters=zoo.YARN | ALIKE,
        **{k: v for k, v in zoo.DEEPSEEK_EXPERTS.items() if k not in ("n_group", "topk_group")},
    )),
    "deepseek_v3": ("deepseek2", zoo._causal(
        "DeepseekV3", **zoo.LATENT, **zoo.DEEPSEEK_EXPERTS, num_hidden_layers=2, rms_norm_eps=1e-3,
        rope_parameters=zoo.YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
    )),
    "glm4_moe_lite": ("deepseek2", zoo._causal(
        "Glm4MoeLite", **zoo.LATENT, num_hidden_layers=2, mlp_layer_types=["dense", "sparse"], norm_topk_prob=True,
        **{k: v for k, v in zoo.DEEPSEEK_EXPERTS.items() if k != "first_k_dense_replace"},
    )),
    "youtu": ("deepseek2", zoo.ZOO["youtu"]),
    "minicpm3": ("minicpm3", zoo._causal(
        "MiniCPM3", **zoo.LATENT, hidden_size=64, scale_emb=12.0, scale_depth=1.4, dim_model_base=256
    )),
    "afmoe": ("afmoe", zoo._causal(
        "Afmoe", **zoo.EXPERTS, head_dim=24, num_experts=5, moe_intermediate_size=16, num_shared_experts=3,
        num_hidden_layers=5, num_dense_layers=2, sliding_window=5, route_scale=1.7, mup_enabled=True,
    )),
    "phimoe": ("phimoe", zoo._causal(
        "Phimoe", **zoo.EXPERTS, intermediate_size=16, num_local_experts=5, num_hidden_layers=2, attention_bias=True,
        lm_head_bias=True, rms_norm_eps=1e-3, rope_parameters=zoo.PHIMOE_ROPE | dict.fromkeys(MSCALES, STRETCHED),
    )),
    "phimoe_window": ("phimoe", zoo._causal(
        "Phimoe", 1, **zoo.EXPERTS, intermediate_size=32, num_local_experts=6, num_hidden_layers=2, sliding_window=6
    )),
    "smallthinker": ("smallthinker", lambda: _smaller_routers(zoo.ZOO["smallthinker"]())),
    "smallthinker_softmax": ("smallthinker", zoo._causal(
        "SmallThinker", 1, **zoo.SMALLTHINKER, tie_word_embeddings=False, moe_primary_router_apply_softmax=True,
        rope_layout=[1] * 5, sliding_window_layout=[0] * 5,
    )),
    "kimi_linear": ("kimi-linear", zoo._kimi(0)),
    "kimi_linear_low_queries": ("kimi-linear", zoo._kimi(
        1, q_lora_rank=40, num_expert_group=1, topk_group=1, layer_types=["full_attention", *["linear_attention"] * 2]
    )),
}  # fmt: skip


def own(c: Any) -> dict[str, Any]:
    """The metadata of a model of these, but for what all have."""
    return OWN[c.model_type](c) if c.model_type in OWN else {}


def experts(n: int, used: int, inner: int) -> dict[str, Any]:
    return {"expert_count": n, "expert_used_count": used, "expert_feed_forward_length": inner}


def _dots1(c: Any) -> dict[str, Any]:
    return experts(c.n_routed_experts, c.num_experts_per_tok, c.moe_intermediate_size) | {
        "expert_shared_count": c.n_shared_experts,
        "leading_dense_block_count": getattr(c, "first_k_dense_replace", 1),
        "expert_weights_scale": float(c.routed_scaling_factor),
        "expert_weights_norm": c.norm_topk_prob,
        "expert_gating_func": 2,
        "expert_group_count": c.n_group,
        "expert_group_used_count": c.topk_group,
    }


def _minimax_m2(c: Any) -> dict[str, Any]:
    return experts(c.num_local_experts, c.num_experts_per_tok, c.intermediate_size) | {"expert_gating_func": 2}


def _ernie(c: Any) -> dict[str, Any]:
    return experts(c.moe_num_experts, c.moe_k, c.moe_intermediate_size) | {
        "interleave_moe_layer_step": c.moe_layer_interval,
        "leading_dense_block_count": c.moe_layer_start_index,
        "expert_shared_count": c.moe_num_shared_experts,
        "expert_shared_feed_forward_length": c.intermediate_size // c.num_key_value_heads,  # as it is written
    }


def _hunyuan(c: Any) -> dict[str, Any]:
    shared = {"expert_shared_count": 1, "expert_shared_feed_forward_length": c.intermediate_size}
    return experts(c.num_experts, c.moe_topk, c.intermediate_size) | shared


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


def _latent(c: Any) -> dict[str, Any]:
    found = {
        "rope.dimension_count": c.qk_rope_head_dim,
        "attention.kv_lora_rank": c.kv_lora_rank,
        "attention.key_length": c.qk_nope_head_dim + c.qk_rope_head_dim,
        "attention.value_length": c.v_head_dim,
    }
    if c.q_lora_rank:
        found["attention.q_lora_rank"] = c.q_lora_rank
    rope = c.rope_parameters
    if rope["rope_type"] == "yarn":
        found |= yarn(rope)
        found["rope.scaling.yarn_log_multiplier"] = 0.1 * rope["mscale_all_dim"]
    return found


def yarn(rope: dict[str, Any]) -> dict[str, Any]:
    found = {"rope.scaling.type": "yarn", "rope.scaling.factor": float(rope["factor"])}
    found["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    return found | {f"rope.scaling.yarn_{key}": float(rope[key]) for key in ("beta_fast", "beta_slow")}


def _deepseek(c: Any) -> dict[str, Any]:
    """What is cached has sizes of its own."""
    found = _latent(c) | {
        "attention.head_count_kv": 1,
        "attention.key_length": c.kv_lora_rank + c.qk_rope_head_dim,
        "attention.value_length": c.kv_lora_rank,
        "attention.key_length_mla": c.qk_nope_head_dim + c.qk_rope_head_dim,
        "attention.value_length_mla": c.v_head_dim,
    }
    return found if c.model_type == "youtu" else found | _experts_of(c)


def _experts_of(c: Any) -> dict[str, Any]:
    """DeepSeek-V2's have no groups here, and a softmax."""
    found = _dots1(c)
    if c.model_type != "deepseek_v2":
        return found
    return {key: value for key, value in found.items() if "group" not in key and "norm" not in key} | {
        "expert_gating_func": 1
    }


def _minicpm(c: Any) -> dict[str, Any]:
    if c.dim_model_base == 256:
        return {}  # files from before the converter wrote them
    return {
        "embedding_scale": float(c.scale_emb),
        "residual_scale": c.scale_depth / c.num_hidden_layers**0.5,
        "logit_scale": c.hidden_size / c.dim_model_base,
    }


def _afmoe(c: Any) -> dict[str, Any]:
    return experts(c.num_experts, c.num_experts_per_tok, c.moe_intermediate_size) | {
        "expert_shared_count": c.num_shared_experts,
        "leading_dense_block_count": c.num_dense_layers,
        "expert_weights_norm": True,
        "expert_weights_scale": c.route_scale,
        "expert_gating_func": 2,
        "attention.sliding_window": c.sliding_window,
    }


def _phimoe(c: Any) -> dict[str, Any]:
    """The scale that the converter writes is of the lengths."""
    rope = c.rope_parameters
    found = {
        "expert_count": c.num_local_experts,
        "expert_used_count": c.num_experts_per_tok,
        "attention.sliding_window": c.sliding_window or 0,
        "rope.scaling.original_context_length": rope.get("original_max_position_embeddings", 96),
    }
    return found | ({"rope.scaling.attn_factor": STRETCHED} if rope["rope_type"] == "longrope" else {})


def _smallthinker(c: Any) -> dict[str, Any]:
    found = experts(c.moe_num_primary_experts, c.moe_num_active_primary_experts, c.moe_ffn_hidden_size)
    found |= {"feed_forward_length": c.moe_ffn_hidden_size, "rope.freq_base": c.rope_theta}
    found["expert_gating_func"] = 1 if c.moe_primary_router_apply_softmax else 2
    return found | ({"attention.sliding_window": c.sliding_window_size} if any(c.sliding_window_layout) else {})


def _smaller_routers(model: Any) -> Any:
    """Sigmoids of the zoo's logits are 1 for several experts of a row. llama.cpp ranks those, the authors' code and we
    the logits."""
    for layer in model.model.layers:
        layer.block_sparse_moe.primary_router.weight.data *= 0.1
    return model


def stacked(model: Any) -> dict[str, Array]:
    """The experts of models that have them one by one."""
    found: dict[str, Array] = {}
    for i, each in enumerate(model.model.layers if model.config.model_type == "smallthinker" else ()):
        for part in ("gate", "up", "down"):
            one_by_one = [getattr(expert, part).weight.detach().numpy() for expert in each.block_sparse_moe.experts]
            found[f"blk.{i}.ffn_{part}_exps.weight"] = np.stack(one_by_one)
    return found


def _kimi(c: Any) -> dict[str, Any]:
    full = [kind == "full_attention" for kind in c.layer_types]
    found = experts(c.num_experts, c.num_experts_per_token, c.moe_intermediate_size) | {
        "attention.head_count_kv": [int(on) for on in full],
        "ssm.conv_kernel": c.linear_conv_kernel_dim,
        "kda.head_dim": c.linear_head_dim,
        "attention.kv_lora_rank": c.kv_lora_rank,
        "rope.dimension_count": c.qk_rope_head_dim,
        "attention.key_length": c.kv_lora_rank + c.qk_rope_head_dim,
        "attention.key_length_mla": c.qk_nope_head_dim + c.qk_rope_head_dim,
        "attention.value_length_mla": c.v_head_dim,
        "expert_shared_count": c.num_shared_experts,
        "leading_dense_block_count": 1,
        "expert_weights_scale": c.routed_scaling_factor,
        "expert_gating_func": 2,
        "expert_group_count": c.num_expert_group,
        "expert_group_used_count": c.topk_group,
    }
    return found | ({"attention.q_lora_rank": c.q_lora_rank} if c.q_lora_rank else {})


def learned(model: Any) -> dict[str, Any]:
    """Numbers of layers that files have in their metadata."""
    if model.config.model_type != "apertus":
        return {}
    acts = [layer.mlp.act_fn for layer in model.model.layers]
    return {f"xielu.{place}": [getattr(act, place).item() for act in acts] for place in XIELU}


OWN: dict[str, Callable[[Any], dict[str, Any]]] = {
    "minicpm": _minicpm,
    "afmoe": _afmoe,
    "phimoe": _phimoe,
    "kimi_linear": _kimi,
    "smallthinker": _smallthinker,
    "dots1": _dots1,
    "minimax_m2": _minimax_m2,
    "ernie4_5_moe": _ernie,
    "hunyuan_v1_moe": _hunyuan,
    "olmo3": _olmo3,
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "youtu"), _deepseek),
    "minicpm3": _latent,
}


def changed(name: str, values: Array, names: Any, c: Any) -> Tensors | None:
    """A tensor by ggml's name as the converter writes it; None: as it writes all."""
    if ".act_fn." in name or ".block_sparse_moe.experts." in name:
        return []
    if c.model_type == "kimi_linear" and (found := _of_kimi(name, values)) is not None:
        return found
    if name.endswith("moe_statics.e_score_correction_bias"):
        return [(f"{layer(name)}.exp_probs_b.bias", values.reshape(-1))]
    if c.model_type in ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "youtu", "kimi_linear") and name.endswith(
        "kv_b_proj.weight"
    ):
        heads = values.reshape(c.num_attention_heads, -1, c.kv_lora_rank)
        keys, vals = np.split(heads, [c.qk_nope_head_dim], axis=1)
        return [(f"{layer(name)}.attn_k_b.weight", keys.swapaxes(1, 2)), (f"{layer(name)}.attn_v_b.weight", vals)]
    return None


def _of_kimi(name: str, values: Array, order: str = "qkv") -> Tensors | None:
    """Convolutions have axes more; transformers has names of its own for some tensors."""
    if name.endswith("attn.conv1d.weight"):
        thirds = (part.reshape(1, -1, 1, part.shape[-1]) for part in np.split(values, 3))
        return [(f"{layer(name)}.ssm_conv1d_{part}.weight", third) for part, third in zip(order, thirds, strict=True)]
    last = name.partition(".forget_gate.")[2].removesuffix(".weight")
    if last == "A_log":
        return [(f"{layer(name)}.ssm_a", -np.exp(values))]
    if last:
        theirs = {"dt_bias": "ssm_dt.bias", "f_a_proj": "ssm_f_a.weight", "f_b_proj": "ssm_f_b.weight"}[last]
        return [(f"{layer(name)}.{theirs}", values)]
    return None


def layer(name: str) -> str:
    return "blk." + re.search(r"\.(\d+)\.", name)[1]  # type: ignore[index]
