"""What `gguf_architectures` writes of decoders that mix attention with other blocks; as `gguf_mixtures`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import zoo
from gguf_mixtures import Array, Tensors, experts, layer

EQUAL_HEADS = zoo.DELTA | {"linear_num_value_heads": 3, "linear_num_key_heads": 3}


# Without biases, which the converter multiplies as if they were weights; steps without limits, which no file names.
FALCON = zoo.MAMBA | {"time_step_limit": [0.0, float("inf")]}
MULTIPLIED = {
    "mamba_d_ssm": 80, "embedding_multiplier": 1.5, "lm_head_multiplier": 0.7, "key_multiplier": 0.6,
    "attention_in_multiplier": 1.3, "attention_out_multiplier": 0.8, "ssm_in_multiplier": 1.2,
    "ssm_out_multiplier": 0.9, "ssm_multipliers": [0.5, 1.4, 0.75, 1.25, 2.0], "mlp_multipliers": [1.6, 0.65],
}  # fmt: skip

MODELS: dict[str, tuple[str, Callable[[], Any]]] = {
    "jamba": ("jamba", zoo._causal(
        "Jamba", **zoo.EXPERTS, intermediate_size=32, num_hidden_layers=4, num_experts=5, attn_layer_period=3,
        attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=0, mamba_d_state=12, mamba_d_conv=3,
        mamba_expand=3, mamba_dt_rank=5,
    )),
    "jamba_dense": ("jamba", zoo.ZOO["jamba_dense"]),
    "qwen3_next": ("qwen3next", zoo._causal(
        "Qwen3Next", 1, **zoo.EXPERTS | zoo.DELTA | zoo.SHARED | zoo.QWEN, norm_topk_prob=True, attention_bias=True
    )),
    "qwen3_5_text": ("qwen35", lambda: zoo._random(
        "Qwen3_5Text", "Qwen3_5ForCausalLM", zoo.SIZES | zoo.DELTA | zoo.QWEN, 5
    )),
    "qwen3_5_moe_text": ("qwen35moe", lambda: zoo._random(
        "Qwen3_5MoeText", "Qwen3_5MoeForCausalLM",
        zoo._without("intermediate_size") | zoo.EXPERTS | EQUAL_HEADS | zoo.SHARED | zoo.QWEN, 6
    )),
    "falcon_h1": ("falcon-h1", zoo._causal("FalconH1", **FALCON, **MULTIPLIED)),
    "falcon_h1_normed": ("falcon-h1", zoo._causal(
        "FalconH1", 1, **FALCON | {"mamba_n_heads": 6}, mamba_d_ssm=None, mamba_rms_norm=True, head_dim=16,
        mamba_norm_before_gate=False,
    )),
    "nemotron_h": ("nemotron_h", zoo._nemotron_h(0, time_step_min=1e-6)),
    "nemotron_h_biases": ("nemotron_h", zoo._nemotron_h(1, time_step_min=1e-6, use_bias=True, mlp_bias=True)),
    "nemotron_h_experts": ("nemotron_h_moe", zoo._nemotron_h(
        2, **zoo.EXPERTS | {"num_experts_per_tok": 3}, time_step_min=1e-6, n_routed_experts=10,
        layers_block_type=["linear_attention", "moe", "full_attention", "moe"],
        moe_intermediate_size=16, moe_shared_expert_intermediate_size=40, routed_scaling_factor=1.5,
    )),
}  # fmt: skip


def own(c: Any) -> dict[str, Any]:
    """The metadata of a model of these, but for what all have."""
    return OWN[c.model_type](c) if c.model_type in OWN else {}


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


def _delta(c: Any) -> dict[str, Any]:
    every = c.layer_types.index("full_attention") + 1
    found = {
        "ssm.conv_kernel": c.linear_conv_kernel_dim,
        "ssm.state_size": c.linear_key_head_dim,
        "ssm.group_count": c.linear_num_key_heads,
        "ssm.time_step_rank": c.linear_num_value_heads,
        "ssm.inner_size": c.linear_value_head_dim * c.linear_num_value_heads,
        "full_attention_interval": every,
    }
    if c.model_type == "qwen3_5_text":
        found |= {"block_count": c.num_hidden_layers + 1, "nextn_predict_layers": 1}
        return found | {"rope.dimension_sections": [2, 1, 1, 0]}
    shared = {"expert_shared_feed_forward_length": c.shared_expert_intermediate_size}
    return found | experts(c.num_experts, c.num_experts_per_tok, c.moe_intermediate_size) | shared


def _mamba2(c: Any, n: int, inner: int, state: int, groups: int, conv: int) -> dict[str, Any]:
    return {
        "ssm.conv_kernel": conv,
        "ssm.state_size": state,
        "ssm.group_count": groups,
        "ssm.time_step_rank": n,
        "ssm.inner_size": inner,
    }


def _falcon_h1(c: Any) -> dict[str, Any]:
    inner = c.mamba_d_ssm or c.mamba_expand * c.hidden_size
    return _mamba2(c, c.mamba_n_heads, inner, c.mamba_d_state, c.mamba_n_groups, c.mamba_d_conv)


def _nemotron_h(c: Any) -> dict[str, Any]:
    types = c.layers_block_type
    inner = c.mamba_num_heads * c.mamba_head_dim
    found = _mamba2(c, c.mamba_num_heads, inner, c.ssm_state_size, c.n_groups, c.conv_kernel) | {
        "attention.head_count_kv": [c.num_key_value_heads * (kind == "attention") for kind in map(_plain, types)],
        "attention.layer_norm_rms_epsilon": c.layer_norm_epsilon,
    }
    wide = c.moe_intermediate_size if "moe" in types else c.intermediate_size
    found["feed_forward_length"] = [wide * (kind in ("mlp", "moe")) for kind in types]
    if "moe" not in types:
        return found
    return (
        found
        | experts(c.n_routed_experts, c.num_experts_per_tok, c.moe_intermediate_size)
        | {
            "expert_shared_count": 1,
            "expert_shared_feed_forward_length": c.moe_shared_expert_intermediate_size,
            "expert_weights_norm": c.norm_topk_prob,
            "expert_weights_scale": float(c.routed_scaling_factor),
            "expert_group_count": c.n_group,
        }
    )


def _plain(kind: str) -> str:
    return {"full_attention": "attention", "linear_attention": "mamba"}.get(kind, kind)


OWN: dict[str, Callable[[Any], dict[str, Any]]] = {
    "jamba": _jamba,
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), _delta),
    "falcon_h1": _falcon_h1,
    "nemotron_h": _nemotron_h,
}


def changed(name: str, values: Array, names: Any, c: Any) -> Tensors | None:
    """A tensor by ggml's name as the converter writes it; None: as it writes all."""
    if c.model_type.startswith("qwen3_"):
        return _of_qwen(name, values, names, c)
    if c.model_type == "falcon_h1":
        return _of_falcon(name, values, names, c)
    return _of_nemotron(name, values, names, c) if c.model_type == "nemotron_h" else None


def _of_qwen(name: str, values: Array, names: Any, c: Any) -> Tensors | None:
    """Norms are stored less 1, but for that inside the delta rule; q, k, v and z of each key head as all q, all k .."""
    if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
        return [(f"{names.get_name(name.removesuffix('.weight'))}.weight", values + 1)]
    if c.model_type != "qwen3_next" and "linear_attn" in name:
        return _in_turn(name, values, names, c)
    if not name.endswith("in_proj_qkvz.weight"):
        return None
    keys, share = c.linear_key_head_dim, c.linear_num_value_heads // c.linear_num_key_heads
    wide = share * c.linear_value_head_dim
    heads = values.reshape(c.linear_num_key_heads, -1, values.shape[1])
    parts = np.split(heads, [keys, 2 * keys, 2 * keys + wide], axis=1)
    q, k, v, z = (part.reshape(-1, values.shape[1]) for part in parts)
    return [(f"{layer(name)}.attn_qkv.weight", np.concatenate([q, k, v])), (f"{layer(name)}.attn_gate.weight", z)]


def _in_turn(name: str, values: Array, names: Any, c: Any) -> Tensors | None:
    """The value heads as the first of each key head, the second of each .."""
    groups, dim, keys = c.linear_num_key_heads, c.linear_value_head_dim, c.linear_num_key_heads * c.linear_key_head_dim

    def turned(x: Array, width: int) -> Array:
        return x.reshape(groups, -1, width, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)

    stem, _, suffix = name.rpartition(".")
    last = stem.rpartition(".")[2]
    if last in ("in_proj_qkv", "conv1d"):
        values = values[:, 0] if last == "conv1d" else values
        turned_values = np.concatenate([values[: 2 * keys], turned(values[2 * keys :], dim)])
        return [(f"{names.get_name(stem)}.{suffix}", turned_values)]
    if last in ("in_proj_z", "in_proj_a", "in_proj_b"):
        return [(f"{names.get_name(stem)}.{suffix}", turned(values, dim if last == "in_proj_z" else 1))]
    if last == "out_proj":
        return [(f"{names.get_name(stem)}.{suffix}", turned(values.T, dim).T)]
    if suffix == "A_log":
        return [(names.get_name(name), turned(-np.exp(values), 1))]
    if suffix == "dt_bias":
        return [(f"{names.get_name(f'{stem}.dt_proj')}.bias", turned(values, 1))]
    return None


def _of_falcon(name: str, values: Array, names: Any, c: Any) -> Tensors | None:
    """All multipliers are in the tensors."""
    stem, _, suffix = name.rpartition(".")
    into, inner = c.attention_in_multiplier, c.mamba_d_ssm or c.mamba_expand * c.hidden_size
    wide = c.mamba_n_groups * c.mamba_d_state
    times = {
        "down_proj": c.mlp_multipliers[1],
        "gate_proj": c.mlp_multipliers[0],
        "k_proj": into * c.key_multiplier,
        "q_proj": into,
        "v_proj": into,
        "o_proj": c.attention_out_multiplier,
        "out_proj": c.ssm_out_multiplier,
        "lm_head": c.lm_head_multiplier,
        "embed_tokens": c.embedding_multiplier,
    }
    last = stem.rpartition(".")[2]
    if last in times:
        return [(f"{names.get_name(stem)}.{suffix}", values * np.float32(times[last]))]
    if last == "pre_ff_layernorm":
        return [(f"{layer(name)}.ffn_norm.{suffix}", values)]
    if last == "in_proj":
        sizes = (inner, inner, wide, wide, c.mamba_n_heads)
        by = np.repeat(np.array(c.ssm_multipliers, np.float32), sizes)[:, None] * np.float32(c.ssm_in_multiplier)
        return [(f"{names.get_name(stem)}.{suffix}", values * by)]
    return _of_mamba2(name, values, names, c.mamba_n_groups)


def _of_nemotron(name: str, values: Array, names: Any, c: Any) -> Tensors | None:
    if name.endswith("mixer.experts.up_proj"):
        return [(f"{layer(name)}.ffn_up_exps.weight", values)]
    if name.endswith("mixer.experts.down_proj"):
        return [(f"{layer(name)}.ffn_down_exps.weight", values)]
    name = name.replace("model.", "backbone.", 1)  # as the authors have it, whose names the converter knows
    if name.endswith("e_score_correction_bias"):
        return [(f"{layer(name)}.exp_probs_b.bias", values)]
    if name.endswith("dt_bias"):
        return [(f"{layer(name)}.ssm_dt.bias", values)]
    if name.endswith("conv1d.weight"):
        values = values[:, 0]
    stem, _, suffix = name.rpartition(".")
    return _of_mamba2(name, values, names, c.n_groups) or [(f"{names.get_name(stem)}.{suffix}", values)]


def _of_mamba2(name: str, values: Array, names: Any, groups: int) -> Tensors | None:
    if name.endswith((".A_log", ".D")):
        return [(names.get_name(name), (-np.exp(values) if name.endswith("A_log") else values)[:, None])]
    if name.endswith(("mamba.norm.weight", "mixer.norm.weight")):
        return [(f"{names.get_name(name.removesuffix('.weight'))}.weight", values.reshape(groups, -1))]
    return None
