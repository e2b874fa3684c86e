"""Configs: what the architectures read in them, assume where they are silent, and refuse."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from config_names import delta_sizes, kv_heads, norm_eps

from edgedec.errors import CheckpointError, UnknownArchitecture
from edgedec.models import FAMILY, architecture
from edgedec.spec import S6, Attention, Conv, Delta, LatentAttention, Mlp, ModelSpec, Moe, Ssm

LLAMA = {
    "model_type": "llama",
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}


def _spec(**changes: Any) -> ModelSpec:
    config = LLAMA | changes
    return architecture(config).spec(config)


# What no architecture guesses; the rest of its keys is left out.
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
DEEPSEEK = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_shared_experts": 1}
HYBRID = {"layer_types": ["linear_attention", "full_attention"]}
SPARSE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
ASKED: dict[str, dict[str, Any]] = {
    "bitnet": {"num_key_value_heads": 4},
    "helium": {"num_key_value_heads": 4},
    "codegen": {"rotary_dim": 4},
    "gptj": {"rotary_dim": 4},
    "gpt_neox": {"hidden_size": 256},
    "stablelm": {"hidden_size": 256},
    "mixtral": EXPERTS,
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "flex_olmo": {"num_experts": 4, "num_experts_per_tok": 2},
    "granitemoeshared": EXPERTS,
    "minimax_m2": EXPERTS,
    "gpt_oss": EXPERTS,
    "deepseek_v2": {"num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "deepseek_v3": DEEPSEEK,
    "glm4_moe_lite": DEEPSEEK,
    "minicpm3": {"v_head_dim": 16},
    "qwen2_moe": {
        **{"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
        "shared_expert_intermediate_size": 32,
    },
    "glm4_moe": DEEPSEEK,
    "dots1": DEEPSEEK,
    "afmoe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "hunyuan_v1_moe": {"head_dim": 16, "intermediate_size": 32},
    "phimoe": {"intermediate_size": 32},
    "granitemoe": EXPERTS,
    "granitemoehybrid": EXPERTS | HYBRID | {"mamba_n_heads": 8},
    "bamba": {"attn_layer_indices": [1], "mamba_n_heads": 8},
    "falcon_h1": {"mamba_n_heads": 8},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm3": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": SPARSE | {"layer_types": ["conv", "full_attention"]},
    "qwen3_next": HYBRID | SPARSE | {"shared_expert_intermediate_size": 24},
    "qwen3_5_text": HYBRID,
    "qwen3_5_moe_text": HYBRID | SPARSE | {"shared_expert_intermediate_size": 24},
    "olmo_hybrid": HYBRID,
    "kimi_linear": HYBRID,
}
JAMBA: dict[str, Any] = {
    "model_type": "jamba",
    "num_hidden_layers": 9,
    "num_key_value_heads": 2,
    "num_experts": 4,
    "intermediate_size": 32,
}
# Models of state-space blocks alone, which know nothing of attention.
ALONE: dict[str, Any] = {"vocab_size": 101, "hidden_size": 48, "num_hidden_layers": 2}
# The text model inside has a name of its own.
WRAPPED = ("gemma3", "gemma3n", "gemma4", "qwen3_5", "qwen3_5_moe")
KIMI = ASKED["kimi_linear"] | {"model_type": "kimi_linear", "max_position_embeddings": None}
MIXTRAL = ASKED["mixtral"] | {"model_type": "mixtral", "num_key_value_heads": 2}
HYBRID_CONFIG = ASKED["granitemoehybrid"] | {"model_type": "granitemoehybrid"}


def test_old_and_new_ways_to_write_a_rope_agree() -> None:
    new = LLAMA | {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}}
    old = LLAMA | {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}}
    assert architecture(new).spec(new) == architecture(old).spec(old)
    gemma = LLAMA | {"model_type": "gemma3_text", "num_hidden_layers": 7}
    old = gemma | {
        "rope_theta": 2e6,
        "rope_local_base_freq": 3e4,
        "rope_scaling": {"type": "linear", "factor": 8.0},
    }
    full = {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6}
    sliding = {"rope_type": "default", "rope_theta": 3e4}
    new = gemma | {"rope_parameters": {"full_attention": full, "sliding_attention": sliding}}
    assert architecture(old).spec(old) == architecture(new).spec(new)
    assert [block.rope for block in architecture(old).spec(old).attention.values()] == [1, 1, 1, 1, 1, 0, 1]


def test_what_a_config_leaves_out_is_what_transformers_assumes() -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    for name in FAMILY.names():
        own = FAMILY.facts(name)  # diffusion: transformers has none, tests/diffusion
        if name in WRAPPED or own.diffusion or own.encodes or name in (*_STATES, *_OWN_TESTS):
            continue  # of the last: the tests after this one, or all keys have other names
        changes: dict[str, Any] = {"num_attention_heads": 32, "hidden_size": 128} | ASKED.get(name, {})
        changes.pop("mamba_n_heads", None)
        spec, config = _spec(model_type=name, **changes), {k: v for k, v in LLAMA.items() if k != "model_type"}
        remote = {"mimo": "qwen2"}  # code of the checkpoint, on top of this one
        theirs = transformers.AutoConfig.for_model(remote.get(name, name), **config | changes)
        block = next(iter(spec.attention.values()))
        if isinstance(block, LatentAttention):
            names = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "q_lora_rank")
            sizes = (block.rank, block.rope_dim, block.nope_dim, block.v_dim, block.q_rank)
            assert sizes == tuple(getattr(theirs, name) or 0 for name in names), name
        else:
            assert block.n_kv_heads == kv_heads(theirs), name
            dim = block.head_dim // (2 if block.differential else 1)
            assert dim == (getattr(theirs, "head_dim", None) or theirs.hidden_size // 32), name
        assert spec.tied == theirs.tie_word_embeddings, name
        assert spec.norm_eps == norm_eps(theirs), name
        if name in ("granite", "granitemoe", "granitemoeshared", "granitemoehybrid"):
            assert spec.embed_scale == theirs.embedding_multiplier, name
        for last in (layer[-1] for layer in spec.layers):
            if isinstance(last, Moe) and last.router not in ("softmax_topk", "sparsemixer"):
                assert last.normalize == getattr(theirs, "norm_topk_prob", True), name
            if isinstance(last, Moe):
                assert last.shared_size == _shared_size(theirs), name
        for ssm in spec.recurrent.values():
            if isinstance(ssm, Conv):
                assert (ssm.conv_size, ssm.bias) == (theirs.conv_L_cache, theirs.conv_bias), name
                continue
            if isinstance(ssm, Delta) and name == "kimi_linear":
                assert (ssm.n_heads, ssm.key_dim) == delta_sizes(theirs)
                assert (ssm.n_groups, ssm.head_dim, ssm.rank) == (ssm.n_heads, ssm.key_dim, ssm.key_dim)
                assert ssm.conv_size == theirs.linear_conv_kernel_dim
                continue
            if isinstance(ssm, Delta):
                sizes = (ssm.n_heads, ssm.head_dim, ssm.n_groups, ssm.key_dim, ssm.conv_size)
                keys = ("num_value_heads", "value_head_dim", "num_key_heads", "key_head_dim", "conv_kernel_dim")
                assert sizes == tuple(getattr(theirs, f"linear_{key}") for key in keys), name
                assert ssm.beta_scale == 1.0 + getattr(theirs, "linear_allow_neg_eigval", False), name
                continue
            sizes = (ssm.n_heads, ssm.head_dim, ssm.n_groups, ssm.state_size, ssm.conv_size)
            names = ("n_heads", "d_head", "n_groups", "d_state", "d_conv")
            assert sizes == tuple(getattr(theirs, f"mamba_{name}") for name in names), name
            assert (ssm.proj_bias, ssm.dt_min, ssm.dt_max) == (theirs.mamba_proj_bias, 0.0, 1e30), name


def _shared_size(config: Any) -> int:
    """Inner dims of the expert that every row passes, by whichever name."""
    if config.model_type == "hunyuan_v1_moe":
        return int(config.intermediate_size)
    for several in ("n_shared_experts", "moe_num_shared_experts", "num_shared_experts"):
        if getattr(config, several, None):
            return int(getattr(config, several) * config.moe_intermediate_size)
    names = ("shared_intermediate_size", "shared_expert_intermediate_size")
    return next((int(getattr(config, name)) for name in names if hasattr(config, name)), 0)


_STATES = ("mamba", "falcon_mamba", "mamba2")
_OWN_TESTS = ("jamba", "nemotron_h", "gemma3n_text", "gemma4_text", "phi4flash", "rwkv7", "bloom", "mpt", "minicpm")
_OWN_TESTS += ("modernbert_decoder", "smallthinker", "zamba2")


@pytest.mark.parametrize("name", _STATES)
def test_what_a_config_of_state_spaces_alone_leaves_out(name: str) -> None:
    """`hidden_size` is one that the default heads of Mamba-2 fill."""
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    given = ALONE | {"hidden_size": 4096}
    config = given | {"model_type": name}
    spec, theirs = architecture(config).spec(config), transformers.AutoConfig.for_model(name, **given)
    assert (spec.tied, spec.norm_eps) == (theirs.tie_word_embeddings, theirs.layer_norm_epsilon)
    assert not spec.attention
    assert not spec.ropes
    for block in spec.recurrent.values():
        assert (block.state_size, block.conv_size) == (theirs.state_size, theirs.conv_kernel)
        assert block.proj_bias == theirs.use_bias
        if isinstance(block, S6):
            assert (block.inner_size, block.dt_rank) == (theirs.expand * 4096, theirs.time_step_rank)
            assert (block.part_norm, block.part_eps) == ("plain" if name == "falcon_mamba" else "none", 1e-6)
        else:
            sizes = (theirs.num_heads, theirs.head_dim, theirs.n_groups)
            assert (block.n_heads, block.head_dim, block.n_groups) == sizes
            assert (block.dt_min, block.dt_max) == (0.0, 1e30)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba", "use_conv_bias": False}, "use_conv_bias is false"),
        ({"model_type": "mamba", "hidden_act": "gelu"}, "hidden_act 'gelu' is not supported by Mamba blocks"),
        ({"model_type": "mamba", "time_step_rank": 0}, "time_step_rank must be a whole number of at least 1"),
        ({"model_type": "mamba", "state_size": 1 << 25}, "state_size: 33554432 is out of range"),
        ({"model_type": "mamba", "mixer_rms_eps": 1e-6}, "mixer_rms_eps is not known"),
        ({"model_type": "mamba", "num_heads": 4}, "num_heads is not known"),
        ({"model_type": "falcon_mamba", "mixer_rms_eps": 0}, "mixer_rms_eps must be a positive number"),
        ({"model_type": "falcon_mamba", "mixer_rms_eps": 2.0}, "part_eps: 2.0 is out of range"),
        (LLAMA | JAMBA | {"mamba_inner_layernorms": False}, "mamba_inner_layernorms is false"),
        (LLAMA | JAMBA | {"attn_layer_offset": 8}, "attn_layer_offset is 8, not below attn_layer_period 8"),
        (LLAMA | JAMBA | {"num_experts_per_tok": 5}, "top_k: 5 of 4 experts"),
        (LLAMA | JAMBA | {"sliding_window": 5}, "sliding_window is not known"),
        ({"model_type": "mamba2", "num_heads": 4}, "4 heads of 64 do not fill 96 channels"),
        ({"model_type": "mamba2", "num_heads": 12, "head_dim": 8, "time_step_limit": [1.0, 0.5]}, "two ascending"),
    ],
)
def test_state_spaces_alone_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    config = ALONE | changes
    with pytest.raises(CheckpointError, match=message):
        architecture(config).spec(config)


def test_what_a_config_of_jamba_leaves_out() -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    given = {"vocab_size": 101, "hidden_size": 64, "intermediate_size": 32, "num_attention_heads": 32}
    given |= {"num_hidden_layers": 9}
    config = given | {"model_type": "jamba"}
    spec, theirs = architecture(config).spec(config), transformers.AutoConfig.for_model("jamba", **given)
    block, last = next(iter(spec.recurrent.values())), spec.layers[1][1]
    assert isinstance(block, S6)
    assert isinstance(last, Moe)
    assert (block.inner_size, block.state_size) == (theirs.mamba_expand * 64, theirs.mamba_d_state)
    assert (block.dt_rank, block.conv_size) == (theirs.mamba_dt_rank, theirs.mamba_d_conv)
    assert (block.proj_bias, block.part_eps) == (theirs.mamba_proj_bias, theirs.rms_norm_eps)
    assert (last.n_experts, last.top_k) == (theirs.num_experts, theirs.num_experts_per_tok)
    assert spec.attention[8].n_kv_heads == theirs.num_key_value_heads
    assert [layer[0].kind == "attention" for layer in spec.layers] == [
        kind == "attention" for kind in theirs.layers_block_type
    ]
    assert [isinstance(layer[1], Moe) for layer in spec.layers] == [n > 1 for n in theirs.layers_num_experts]
    assert (spec.tied, spec.context_length) == (theirs.tie_word_embeddings, theirs.max_position_embeddings)


NEMOTRON_H = {
    **{"vocab_size": 101, "hidden_size": 64, "num_attention_heads": 32, "max_position_embeddings": 64},
    **{"layers_block_type": ["linear_attention", "mlp", "full_attention", "moe"], "moe_intermediate_size": 48},
}


def test_what_a_config_of_nemotron_h_leaves_out() -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    config = {key: value for key, value in NEMOTRON_H.items() if key != "max_position_embeddings"}
    spec = architecture(config | {"model_type": "nemotron_h"}).spec(config | {"model_type": "nemotron_h"})
    theirs = transformers.AutoConfig.for_model("nemotron_h", **config)
    (ssm,), (mlp,), (attention,), (moe,) = spec.layers
    assert isinstance(moe, Moe)
    sizes = (theirs.n_routed_experts, theirs.num_experts_per_tok, theirs.moe_intermediate_size)
    assert (moe.n_experts, moe.top_k, moe.inner_size) == sizes
    choice = (theirs.norm_topk_prob, theirs.routed_scaling_factor, theirs.n_group, theirs.topk_group)
    assert (moe.normalize, moe.scale, moe.groups, moe.top_groups) == choice
    assert (moe.shared_size, moe.gated) == (theirs.moe_shared_expert_intermediate_size, False)
    assert moe.activation == theirs.mlp_hidden_act
    assert isinstance(ssm, Ssm)
    assert isinstance(mlp, Mlp)
    assert isinstance(attention, Attention)
    sizes = (theirs.mamba_num_heads, theirs.mamba_head_dim, theirs.n_groups, theirs.ssm_state_size, theirs.conv_kernel)
    assert (ssm.n_heads, ssm.head_dim, ssm.n_groups, ssm.state_size, ssm.conv_size) == sizes
    assert (ssm.norm_groups, ssm.dt_min, ssm.dt_max) == (theirs.n_groups, theirs.time_step_min, Ssm.dt_max)
    assert ssm.proj_bias == theirs.use_bias
    assert (mlp.inner_size, mlp.gated, mlp.bias) == (theirs.intermediate_size, False, theirs.mlp_bias)
    assert mlp.activation == theirs.mlp_hidden_act
    assert (attention.n_kv_heads, attention.head_dim) == (theirs.num_key_value_heads, theirs.head_dim)
    assert (attention.rope, attention.scale) == (None, theirs.head_dim**-0.5)
    assert (spec.tied, spec.norm_eps) == (theirs.tie_word_embeddings, theirs.layer_norm_epsilon)
    assert spec.context_length == theirs.max_position_embeddings


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({"layers_block_type": None, "hybrid_override_pattern": "M-*M"}, ["ssm", "mlp", "attention", "ssm"]),
        ({"layers_block_type": ["mamba", "attention"]}, ["ssm", "attention"]),
        ({"layers_block_type": None, "hybrid_override_pattern": "ME-*"}, ["ssm", "moe", "mlp", "attention"]),
        ({"layers_block_type": ["mlp"], "hybrid_override_pattern": "M*"}, ["mlp"]),
        ({"layers_block_type": None, "layer_types": ["linear_attention", "full_attention"]}, ["ssm", "attention"]),
    ],
)
def test_which_block_a_layer_of_nemotron_h_is(changes: dict[str, Any], kinds: list[str]) -> None:
    config = NEMOTRON_H | {"model_type": "nemotron_h", "attention_head_dim": 16} | changes
    spec = architecture(config).spec(config, 32)
    assert [layer[0].kind for layer in spec.layers] == kinds
    assert spec.context_length == 32
    assert all(block.head_dim == 16 for block in spec.attention.values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers_block_type": ["moe"], "moe_latent_size": 8}, "moe_latent_size is set: experts of another width"),
        ({"layers_block_type": ["moe"], "mlp_bias": True}, "mlp_bias is true: a shared expert with biases"),
        ({"layers_block_type": ["moe"], "n_shared_experts": 2}, "n_shared_experts is 2; supported is 1"),
        ({"layers_block_type": ["moe"], "moe_intermediate_size": 24}, "inner_size: 24 is not a multiple of 16"),
        ({"layers_block_type": ["moe"], "n_group": 3}, "groups: 8 experts are not 3 groups"),
        ({"layers_block_type": None, "hybrid_override_pattern": "Mx"}, "hybrid_override_pattern 'x' is not supported"),
        ({"layers_block_type": None}, "layers_block_type is missing"),
        ({"use_conv_bias": False}, "use_conv_bias is false"),
        ({"mamba_hidden_act": "gelu"}, "mamba_hidden_act 'gelu' is not supported; known: silu"),
        ({"attention_bias": True}, "attention_bias is not supported"),
        ({"sliding_window": 4}, "sliding_window is not supported"),
        ({"max_position_embeddings": 8}, "is 8; a context of 9 is out of range"),
        ({"expert_size": 4}, "expert_size is not known"),
    ],
)
def test_a_nemotron_h_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    config = NEMOTRON_H | {"model_type": "nemotron_h"} | changes
    with pytest.raises(CheckpointError, match=message):
        architecture(config).spec(config, 9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_experts_per_tok": 3}, "num_experts_per_tok is 3; its router chooses 2"),
        ({"router_jitter_noise": 1.5}, "jitter: 1.5 of a router by sparsemixer"),
        ({"rope_scaling": {"type": "longrope"}}, "short_mscale is None, long_mscale is None; supported is the same"),
        (
            {"rope_scaling": {"type": "longrope", "short_mscale": 1.1, "long_mscale": 1.2}},
            "short_mscale is 1.1, long_mscale is 1.2; supported is the same number for both",
        ),
    ],
)
def test_a_phimoe_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    config = {"model_type": "phimoe", "hidden_size": 64, "intermediate_size": 32, "num_key_value_heads": 2}
    with pytest.raises(CheckpointError, match=message):
        _spec(**config | changes)


HUNYUAN_MOE = {"model_type": "hunyuan_v1_moe", "hidden_size": 64, "intermediate_size": 32, "num_experts": 4}
AFMOE = ASKED["afmoe"] | {"model_type": "afmoe", "hidden_size": 64, "sliding_window": 8}


def test_layers_of_hunyuan_may_choose_other_numbers_of_experts() -> None:
    spec = _spec(**HUNYUAN_MOE | {"moe_topk": [1, 3], "num_experts": [4, 5], "moe_intermediate_size": [32, 32]})
    assert [(layer[1].n_experts, layer[1].top_k) for layer in spec.layers] == [(4, 1), (5, 3)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (HUNYUAN_MOE | {"moe_topk": [1]}, "moe_topk must be 2 whole numbers of at least 1"),
        (HUNYUAN_MOE | {"moe_topk": [1, 5]}, "top_k: 5 of 4 experts"),
        (HUNYUAN_MOE | {"num_shared_expert": [1, 2]}, "num_shared_expert .* known: 1 in every layer"),
        (HUNYUAN_MOE | {"moe_intermediate_size": 16}, "moe_intermediate_size .* known: 32 in every layer"),
        (HUNYUAN_MOE | {"use_mixed_mlp_moe": False}, "use_mixed_mlp_moe False is not supported; known: True"),
        (HUNYUAN_MOE | {"moe_layer_num_skipped": 1}, "moe_layer_num_skipped 1 is not supported; known: 0"),
        (HUNYUAN_MOE | {"use_cla": True}, "use_cla True is not supported"),
        (AFMOE | {"route_norm": False}, "route_norm False is not supported; known: True"),
        (AFMOE | {"score_func": "softmax"}, "score_func 'softmax' is not supported"),
        (AFMOE | {"n_group": 2}, "n_group 2 is not supported; known: 1"),
        (AFMOE | {"attention_bias": True}, "attention_bias True is not supported"),
        (AFMOE | {"layer_types": ["sliding_attention"]}, "names 1 layers of 2"),
        (AFMOE | {"expert_size": 4}, "expert_size is not known"),
    ],
)
def test_hunyuan_and_afmoe_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        _spec(**changes)


def test_layers_of_afmoe_without_a_window_do_not_rotate() -> None:
    spec = _spec(**AFMOE | {"num_hidden_layers": 5, "num_dense_layers": 2, "mup_enabled": True})
    found = [(block.window, block.rope) for block in spec.attention.values()]
    assert found == [(8, 0), (8, 0), (8, 0), (None, None), (8, 0)]
    assert [layer[1].kind for layer in spec.layers] == ["mlp", "mlp", "moe", "moe", "moe"]
    assert spec.embed_scale == 8.0
    wide = _spec(**AFMOE | {"sliding_window": 64})  # hides nothing, and rotates all the same
    assert [(block.window, block.rope) for block in wide.attention.values()] == [(None, 0), (None, 0)]


FALCON_H1 = {"model_type": "falcon_h1", "num_attention_heads": 4, "mamba_n_heads": 8, "num_key_value_heads": 2}


def test_what_a_config_of_falcon_h1_leaves_out() -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    theirs = transformers.AutoConfig.for_model("falcon_h1")
    ssm, attention, mlp = _spec(**FALCON_H1).layers[0]
    assert isinstance(ssm, Ssm)
    assert isinstance(attention, Attention)
    assert isinstance(mlp, Mlp)
    assert (ssm.inner_size, ssm.branch, ssm.norm_groups) == (theirs.mamba_d_ssm, True, 0)
    assert theirs.mamba_rms_norm is False
    assert (ssm.proj_bias, attention.qkv_bias, mlp.bias) == (False, False, False)
    sources = architecture(FALCON_H1).weights(_spec(**FALCON_H1), FALCON_H1)
    assert {part.times for name, parts in sources.items() if not name.endswith(".a") for part in parts} == {1.0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mamba_rms_norm": True}, "mamba_norm_before_gate is true: a norm before the gate"),
        ({"projectors_bias": True}, "projectors_bias is not mamba_proj_bias"),
        ({"ssm_multipliers": [1.0, 2.0]}, "ssm_multipliers must be 5 positive numbers"),
        ({"mlp_multipliers": [1.0, 0.0]}, "mlp_multipliers must be 2 positive numbers"),
        ({"layer_types": ["mamba"]}, "layer_types is not supported; known: hybrid"),
        ({"mamba_d_ssm": 1001}, "8 heads of 125 do not fill 1001 channels"),
    ],
)
def test_a_falcon_h1_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        _spec(**FALCON_H1 | changes)


@pytest.mark.parametrize("silent", [True, False])
def test_which_layers_of_kimi_linear_attend_and_have_experts(silent: bool) -> None:
    """As transformers reads the published config, whose lists count layers from 1, and one that says nothing."""
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    gone = ("rope_scaling", *(("linear_attn_config", "first_k_dense_replace", "model_max_length") if silent else ()))
    given = {key: value for key, value in PUBLISHED["kimi_linear"].items() if key not in gone}
    config = given | {"model_type": "kimi_linear"}
    spec, theirs = architecture(config).spec(config), transformers.AutoConfig.for_model("kimi_linear", **given)
    kinds = {"full_attention": "latent", "linear_attention": "delta", "dense": "mlp", "sparse": "moe"}
    expected = [(kinds[a], kinds[b]) for a, b in zip(theirs.layer_types, theirs.mlp_layer_types, strict=True)]
    assert [tuple(block.kind for block in layer) for layer in spec.layers] == expected
    assert spec.context_length == theirs.max_position_embeddings == 1048576
    assert [i for i, layer in enumerate(spec.layers) if layer[0].kind == "latent"][:2] == ([4, 8] if silent else [3, 7])


def test_which_layers_of_jamba_attend_and_have_experts() -> None:
    spec = _spec(**JAMBA)
    assert [layer[0].kind == "attention" for layer in spec.layers] == [i == 4 for i in range(9)]
    assert [layer[1].kind == "moe" for layer in spec.layers] == [i % 2 == 1 for i in range(9)]
    assert all(block.rope is None for block in spec.attention.values())
    one = _spec(**JAMBA | {"num_experts": 1, "expert_layer_period": 1, "expert_layer_offset": 0})
    assert "moe" not in one.kinds


@pytest.mark.parametrize("config", [LLAMA | JAMBA, NEMOTRON_H | {"model_type": "nemotron_h"}])
def test_a_model_without_ropes_has_the_context_that_its_config_allows(config: dict[str, Any]) -> None:
    model = architecture(config)
    assert [model.spec(config, asked).context_length for asked in (None, 64, 1)] == [64, 64, 1]
    for asked in (0, 65):
        with pytest.raises(CheckpointError, match=f"is 64; a context of {asked} is out of range"):
            model.spec(config, asked)


def test_a_context_of_state_spaces_alone_is_what_is_asked() -> None:
    config = ALONE | {"model_type": "mamba"}
    assert (architecture(config).spec(config).context_length, architecture(config).spec(config, 5).context_length) == (
        1 << 20,
        5,
    )
    with pytest.raises(CheckpointError, match="a context of 1048577 is out of range"):
        architecture(config).spec(config, (1 << 20) + 1)


def test_gemma3_text_config_may_be_almost_empty() -> None:
    """As published: sizes that are the usual ones are not written down."""
    text = {"hidden_size": 2560, "num_hidden_layers": 34, "sliding_window": 1024, "intermediate_size": 10240}
    text |= {"model_type": "gemma3_text", "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}
    config = {"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 8}}
    spec = architecture(config).spec(config)
    block = spec.attention[0]
    assert (spec.vocab_size, block.n_heads, block.n_kv_heads, block.head_dim) == (262208, 8, 4, 256)
    assert (spec.context_length, spec.tied, spec.embed_scale) == (131072, True, float(np.float32(2560**0.5)))
    assert [(spec.attention[b].rope, spec.attention[b].window) for b in (8, 10, 12)] == [
        (1, 1024),
        (0, None),
        (1, 1024),
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {
            "model_type": "llama",
            "is_llama_config": True,
            "rope_interleaved": False,
            "transformers.js_config": {"a": 1},
        },
        {"model_type": "smollm3", "max_window_layers": 28, "sliding_window": None, "pretraining_tp": 2},
        {
            "model_type": "gemma2",
            "hidden_act": "gelu",
            "sliding_window_size": 8,
            "cache_implementation": "hybrid",
        },
        {
            "model_type": "phi3",
            "full_attn_mod": 1,
            "interpolate_factor": 1,
            "lm_head_bias": False,
            "embd_pdrop": 0.1,
        },
        {"model_type": "qwen2", "use_mrope": False, "max_window_layers": 28, "num_key_value_heads": 2},
        {"model_type": "mimo", "attention_bias": True, "num_nextn_predict_layers": 1, "num_key_value_heads": 2},
        {"model_type": "mimo", "num_key_value_heads": 2, "sliding_window": 32, "use_mrope": False},
        {"model_type": "mixtral", "num_key_value_heads": 2, "router_aux_loss_coef": 0.02, "sliding_window": None},
        {"model_type": "qwen3_moe", "max_window_layers": 48, "sliding_window": 8, "num_local_experts": 4},
        {"model_type": "olmoe", "clip_qkv": None, "output_router_logits": True},
        {"model_type": "qwen2_moe", "num_key_value_heads": 2, "use_sliding_window": False, "max_window_layers": 21},
        {"model_type": "deepseek_v2", "topk_method": "greedy", "n_group": 1, "seq_aux": True, "ep_size": 1},
        {"model_type": "deepseek_v3", "num_key_value_heads": 4, "scoring_func": "sigmoid", "topk_method": "noaux_tc"},
        {"model_type": "ernie4_5_moe", "num_key_value_heads": 2, "moe_gate": "topk", "moe_use_aux_free": True},
        {"model_type": "glm4_moe", "num_key_value_heads": 2, "num_nextn_predict_layers": 1, "n_group": 1},
        {"model_type": "minimax_m2", "num_key_value_heads": 2, "use_mtp": True, "attn_type_list": [1, 1]},
        {"model_type": "granitemoehybrid", "position_embedding_type": "nope", "init_method": "mup"},
        {"model_type": "granitemoehybrid", "layer_types": ["mamba", "attention"], "mamba_chunk_size": 64},
        {"model_type": "granitemoehybrid", "normalization_function": "rmsnorm", "layers_block_type": None},
        {"model_type": "bamba", "attn_rotary_emb": 6, "num_key_value_heads": 2, "z_loss_coefficient": 0.1},
        {"model_type": "bamba", "num_key_value_heads": 2, "time_step_limit": [0, {"__float__": "Infinity"}]},
    ],
)
def test_what_published_configs_add_is_understood(changes: dict[str, Any]) -> None:
    asked = ASKED.get(changes["model_type"], {}) | {"hidden_size": 48}
    least = {k: v for k, v in changes.items() if k in ("model_type", "num_key_value_heads")}
    assert _spec(**asked | changes) == _spec(**asked | least)


ROPES: list[dict[str, Any]] = [
    {"rope_type": "default", "rope_theta": 1e6},
    {"rope_type": "linear", "rope_theta": 1e4, "factor": 8.0},
    {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32768},
    {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 40.0,
        "mscale": 0.7,
        "mscale_all_dim": 1.3,
        "truncate": False,
    },
    {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "attention_factor": 1.7, "beta_fast": 16.0},
]


@pytest.mark.parametrize("table", ROPES)
def test_ropes_of_real_sizes(table: dict[str, Any]) -> None:
    rope_utils = pytest.importorskip("transformers.modeling_rope_utils", reason="needs transformers")
    llama = pytest.importorskip("transformers.models.llama.modeling_llama", reason="needs transformers")
    sizes = {"head_dim": 128, "max_position_embeddings": 131072, "rope_parameters": table}
    config = llama.LlamaConfig(**{k: v for k, v in LLAMA.items() if k != "model_type"} | sizes)
    default = llama.LlamaRotaryEmbedding.compute_default_rope_parameters
    inv_freq, scale = rope_utils.ROPE_INIT_FUNCTIONS.get(table["rope_type"], default)(config)
    found = _spec(**sizes).ropes[0]
    np.testing.assert_allclose(found.inv_freq, inv_freq.double().numpy(), rtol=2.5e-7)
    assert found.scale == pytest.approx(scale, rel=1e-12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": None}, "vocab_size must be a whole number, found null"),
        ({"vocab_size": "101"}, "vocab_size must be a whole number of at least 1, found '101'"),
        ({"vocab_size": 0}, "vocab_size must be a whole number of at least 1, found 0"),
        ({"hidden_act": "mish"}, "hidden_act 'mish' is not supported"),
        ({"attention_bias": 1}, "attention_bias must be true or false, found 1"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is set: is already quantized"),
        ({"num_local_experts": 8}, "num_local_experts is set: this architecture has no experts"),
        ({"embedding_multiplier": 12.0}, "embedding_multiplier is not known"),
        ({"rope_scaling": {"type": "abf"}}, "rope_type 'abf' is not one of default, linear"),
        ({"rope_scaling": {"type": "linear"}}, "factor is missing"),
        ({"rope_scaling": {"type": "default", "mrope_section": [1, 2]}}, "mrope_section is not known"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is not supported by this architecture"),
        ({"head_dim": 15}, "rotates 15 of 15 dims"),
        ({"hidden_size": 50}, "hidden_size 50 is not a multiple of 4 heads"),
        ({"num_key_value_heads": 3}, "4 heads do not share 3 kv heads evenly"),
        (
            {"model_type": "qwen2", "num_key_value_heads": 2, "layer_types": ["full_attention"]},
            "names 1 layers of 2",
        ),
        ({"model_type": "gemma2", "use_bidirectional_attention": True}, "use_bidirectional_attention is set"),
        (
            {"model_type": "smollm3", "layer_types": ["sliding_attention"] * 2},
            "while use_sliding_window is false",
        ),
        ({"model_type": "mistral", "layer_types": ["full_attention"] * 2}, "contradicts sliding_window"),
        (
            {"model_type": "phi3", "rope_scaling": {"type": "su", "short_factor": [1.0]}},
            "short_factor must be a list",
        ),
        ({"model_type": "mixtral"}, "num_local_experts is missing"),
        (MIXTRAL | {"intermediate_size": 20}, "is not a multiple of 16"),
        (MIXTRAL | {"num_experts_per_tok": 5}, "top_k: 5 of 4 experts"),
        (MIXTRAL | {"hidden_size": 40}, "hidden_size: 40 is not a multiple of 16"),
        (
            ASKED["qwen3_moe"] | {"model_type": "qwen3_moe", "num_local_experts": 8},
            "num_experts is 4, num_local_experts",
        ),
        (ASKED["qwen3_moe"] | {"model_type": "qwen3_moe", "mlp_only_layers": ["0"]}, "mlp_only_layers must be a list"),
        (ASKED["olmoe"] | {"model_type": "olmoe", "clip_qkv": 8.0}, "clip_qkv is set"),
        ({"model_type": "mimo", "attention_bias": False}, "attention_bias is false"),
        (ASKED["granitemoe"] | {"model_type": "granitemoe", "logits_scaling": 0}, "must be a positive number"),
        (HYBRID_CONFIG | {"layer_types": ["mamba"]}, "layer_types names 1 layers of 2"),
        (HYBRID_CONFIG | {"layer_types": ["mamba", "moe"]}, "layer_types 'moe' is not supported"),
        (HYBRID_CONFIG | {"position_embedding_type": "alibi"}, "position_embedding_type 'alibi' is not supported"),
        (
            HYBRID_CONFIG | {"normalization_function": "layernorm"},
            "normalization_function 'layernorm' is not supported",
        ),
        (HYBRID_CONFIG | {"mamba_conv_bias": False}, "mamba_conv_bias is false"),
        (HYBRID_CONFIG | {"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported by Mamba blocks"),
        (HYBRID_CONFIG | {"mamba_n_heads": 7}, "7 heads of 13 do not fill 96 channels"),
        (HYBRID_CONFIG | {"mamba_n_groups": 5}, "heads do not share 5 groups evenly"),
        (HYBRID_CONFIG | {"time_step_limit": [1.0, 0.5]}, "time_step_limit must be two ascending numbers"),
        (HYBRID_CONFIG | {"time_step_limit": 3}, "time_step_limit must be two ascending numbers"),
        (HYBRID_CONFIG | {"mamba_step_rank": 3}, "mamba_step_rank is not known"),
        (
            {"model_type": "bamba", "num_key_value_heads": 2, "mamba_n_heads": 8, "attn_rotary_emb": 12},
            "is not 6, half",
        ),
        (KIMI | {"mla_use_nope": False}, "mla_use_nope is False; supported is True only"),
        (KIMI | {"moe_router_activation_func": "softmax"}, "moe_router_activation_func is 'softmax'"),
        (KIMI | {"attn_res_block_size": 12}, "attn_res_block_size is not known"),
        (KIMI | {"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported by delta blocks"),
        (KIMI | {"head_dim": 16}, "head_dim is 16: of latent attention with these sizes it is 64"),
        (KIMI | {"mlp_layer_types": ["dense", "moe"]}, "mlp_layer_types must name 2 layers as dense or sparse"),
        (KIMI | {"mlp_layer_types": ["sparse"] * 2, "first_k_dense_replace": 1}, "name different layers"),
        (KIMI | {"linear_attn_config": {"kda_layers": [1]}}, "do not name each of the 2 layers once"),
        (KIMI | {"linear_attn_config": {"kda_layers": [2], "full_attn_layers": [1]}}, "name different layers"),
        (
            KIMI | {"linear_attn_config": {"gate_lower_bound": -5.0}},
            "linear_attn_config: gate_lower_bound is not known",
        ),
        ({"model_type": "bamba", "partial_rotary_factor": 1.0}, "partial_rotary_factor is not supported; known: 0.5"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        _spec(**changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_which_layers_have_experts() -> None:
    """Every second layer, and none of those named; as transformers builds them."""
    asked = ASKED["qwen3_moe"] | {"model_type": "qwen3_moe", "num_hidden_layers": 6, "mlp_only_layers": [3]}
    spec = _spec(**asked, decoder_sparse_step=2)
    assert [layer[1].kind for layer in spec.layers] == ["mlp", "moe", "mlp", "mlp", "mlp", "moe"]
    assert [spec.span(i, i + 1) for i in (0, 5)] == [range(2), range(10, 12)]


def test_hybrids_with_and_without_positions_and_experts() -> None:
    rotated = _spec(**HYBRID_CONFIG, position_embedding_type="rope")
    assert [block.kind for block in rotated.blocks] == ["ssm", "moe", "attention", "moe"]
    assert (rotated.attention[2].rope, len(rotated.ropes)) == (0, 1)
    still = _spec(**HYBRID_CONFIG)
    assert (still.attention[2].rope, still.ropes) == (None, ())
    dense = _spec(**HYBRID_CONFIG | {"num_local_experts": 0, "num_experts_per_tok": 0})
    assert [block.kind for block in dense.blocks] == ["ssm", "mlp", "attention", "mlp"]


def test_multipliers_are_in_the_spec_or_in_the_weights() -> None:
    config = LLAMA | ASKED["granitemoe"] | {"model_type": "granitemoe", "embedding_multiplier": 12}
    config |= {"attention_multiplier": 0.25, "residual_multiplier": 0.22, "logits_scaling": 8.0}
    spec = architecture(config).spec(config)
    found = architecture(config).weights(spec, config)
    assert (spec.embed_scale, spec.attention[0].scale) == (12.0, 0.25)
    times = {name: {part.times for part in source} for name, source in found.items()}
    last = {"blocks.0.o", "blocks.1.down", "blocks.2.o", "blocks.3.down"}
    assert {name for name, factors in times.items() if factors == {0.22}} == last
    assert times["final_norm"] == {0.125}
    assert all(factors == {1.0} for name, factors in times.items() if name not in last | {"final_norm"})


def test_unknown_keys_that_are_off_pass() -> None:
    assert _spec(rope_interleaved=False, some_scale=None, _attn="x", unsloth_fixed=True) == _spec()


def test_unknown_architectures_are_listed() -> None:
    with pytest.raises(UnknownArchitecture, match=r"'rwkv' .*Mamba.* is not one of a2d_qwen3, .*, zamba2$"):
        architecture({"model_type": "rwkv"})
    for name in ("_common", "nano", "heads", "../llama"):
        with pytest.raises(UnknownArchitecture):
            architecture({"model_type": name})
    with pytest.raises(CheckpointError, match="model_type must be a string"):
        architecture({})


def test_a_window_as_wide_as_the_context_is_none() -> None:
    assert _spec(model_type="mistral", num_key_value_heads=2, sliding_window=64).windows == ((None, 0),)
    assert _spec(model_type="mistral", num_key_value_heads=2, sliding_window=63).windows == ((63, 0),)


# As published, of Mixtral-8x7B, Qwen3-30B-A3B, OLMoE-1B-7B, granite-3.1-1b-a400m, granite-4.0-h-tiny and Bamba-9B.
PUBLISHED: dict[str, dict[str, Any]] = {
    "mixtral": {
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 32768,
        "num_attention_heads": 32,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "output_router_logits": False,
        "rms_norm_eps": 1e-05,
        "rope_theta": 1000000.0,
        "router_aux_loss_coef": 0.02,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "vocab_size": 32000,
    },
    "qwen3_moe": {
        "attention_bias": False,
        "decoder_sparse_step": 1,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "max_position_embeddings": 40960,
        "max_window_layers": 48,
        "mlp_only_layers": [],
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
        "num_attention_heads": 32,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 48,
        "num_key_value_heads": 4,
        "output_router_logits": False,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000.0,
        "router_aux_loss_coef": 0.001,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
    "qwen2_moe": {
        "decoder_sparse_step": 1,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "max_position_embeddings": 8192,
        "max_window_layers": 21,
        "moe_intermediate_size": 1408,
        "norm_topk_prob": False,
        "num_attention_heads": 16,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "num_hidden_layers": 24,
        "num_key_value_heads": 16,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "shared_expert_intermediate_size": 5632,
        "sliding_window": 32768,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
    "gpt_oss": {
        "attention_bias": True,
        "experts_per_token": 4,
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 2880,
        "initial_context_length": 4096,
        "intermediate_size": 2880,
        "layer_types": ["sliding_attention", "full_attention"] * 12,
        "max_position_embeddings": 131072,
        "num_attention_heads": 64,
        "num_experts_per_tok": 4,
        "num_hidden_layers": 24,
        "num_key_value_heads": 8,
        "num_local_experts": 32,
        "output_router_logits": False,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            **{"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096},
            **{"rope_type": "yarn", "truncate": False},
        },
        "rope_theta": 150000,
        "router_aux_loss_coef": 0.9,
        "sliding_window": 128,
        "swiglu_limit": 7.0,
        "tie_word_embeddings": False,
        "vocab_size": 201088,
    },
    "deepseek_v2": {
        **{"aux_loss_alpha": 0.001, "seq_aux": True, "ep_size": 1, "moe_layer_freq": 1, "pretraining_tp": 1},
        "attention_bias": False,
        "first_k_dense_replace": 1,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 10944,
        "kv_lora_rank": 512,
        "max_position_embeddings": 163840,
        "moe_intermediate_size": 1408,
        "n_group": 1,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "norm_topk_prob": False,
        "num_attention_heads": 16,
        "num_experts_per_tok": 6,
        "num_hidden_layers": 27,
        "num_key_value_heads": 16,
        "q_lora_rank": None,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-06,
        "rope_scaling": {
            **{"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707},
            **{"original_max_position_embeddings": 4096, "type": "yarn"},
        },
        "rope_theta": 10000,
        "routed_scaling_factor": 1.0,
        "scoring_func": "softmax",
        "tie_word_embeddings": False,
        "topk_group": 1,
        "topk_method": "greedy",
        "v_head_dim": 128,
        "vocab_size": 102400,
    },
    "deepseek_v3": {
        **{"aux_loss_alpha": 0.0001, "seq_aux": True, "ep_size": 1, "moe_layer_freq": 1, "pretraining_tp": 1},
        "attention_bias": False,
        "first_k_dense_replace": 3,
        "hidden_act": "silu",
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "kv_lora_rank": 512,
        "max_position_embeddings": 163840,
        "moe_intermediate_size": 2048,
        "n_group": 8,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 61,
        "num_key_value_heads": 128,
        "num_nextn_predict_layers": 1,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-06,
        "rope_scaling": {
            **{"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0},
            **{"original_max_position_embeddings": 4096, "type": "yarn"},
        },
        "rope_theta": 10000,
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
        "tie_word_embeddings": False,
        "topk_group": 4,
        "topk_method": "noaux_tc",
        "v_head_dim": 128,
        "vocab_size": 129280,
    },
    "olmoe": {
        "attention_bias": False,
        "clip_qkv": None,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 1024,
        "max_position_embeddings": 4096,
        "norm_topk_prob": False,
        "num_attention_heads": 16,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 16,
        "num_key_value_heads": 16,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "vocab_size": 50304,
    },
    "granitemoe": {
        "attention_multiplier": 0.015625,
        "embedding_multiplier": 12.0,
        "hidden_act": "silu",
        "hidden_size": 1024,
        "intermediate_size": 512,
        "logits_scaling": 6.0,
        "max_position_embeddings": 131072,
        "num_attention_heads": 16,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 24,
        "num_key_value_heads": 8,
        "num_local_experts": 32,
        "residual_multiplier": 0.22,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1500000,
        "tie_word_embeddings": True,
        "vocab_size": 49155,
    },
    "granitemoehybrid": {
        "attention_multiplier": 0.0078125,
        "embedding_multiplier": 12,
        "hidden_act": "silu",
        "hidden_size": 1536,
        "init_method": "mup",
        "intermediate_size": 512,
        "layer_types": ["attention" if i in (5, 15, 25, 35) else "mamba" for i in range(40)],
        "logits_scaling": 6,
        "mamba_chunk_size": 256,
        "mamba_conv_bias": True,
        "mamba_d_conv": 4,
        "mamba_d_head": 64,
        "mamba_d_state": 128,
        "mamba_expand": 2,
        "mamba_n_groups": 1,
        "mamba_n_heads": 48,
        "mamba_proj_bias": False,
        "max_position_embeddings": 131072,
        "normalization_function": "rmsnorm",
        "num_attention_heads": 12,
        "num_experts_per_tok": 6,
        "num_hidden_layers": 40,
        "num_key_value_heads": 4,
        "num_local_experts": 64,
        "position_embedding_type": "nope",
        "residual_multiplier": 0.22,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 10000,
        "shared_intermediate_size": 1024,
        "tie_word_embeddings": True,
        "vocab_size": 100352,
    },
    "lfm2": {  # 1.2B
        **{"block_auto_adjust_ff_dim": True, "block_dim": 2048, "block_ff_dim": 12288, "block_multiple_of": 256},
        **{"block_ffn_dim_multiplier": 1.0, "block_mlp_init_scale": 1.0, "block_out_init_scale": 1.0},
        **{"block_norm_eps": 1e-05, "block_use_swiglu": True, "block_use_xavier_init": True},
        **{"conv_L_cache": 3, "conv_bias": False, "conv_dim": 2048, "conv_dim_out": 2048},
        **{"conv_use_xavier_init": True, "use_pos_enc": True, "tie_embedding": True},
        "full_attn_idxs": [2, 5, 8, 10, 12, 14],
        "hidden_size": 2048,
        "max_position_embeddings": 128000,
        "norm_eps": 1e-05,
        "num_attention_heads": 32,
        "num_heads": 32,
        "num_hidden_layers": 16,
        "num_key_value_heads": 8,
        "rope_theta": 1000000.0,
        "vocab_size": 65536,
    },
    "qwen3_next": {  # 80B-A3B
        "decoder_sparse_step": 1,
        "full_attention_interval": 4,
        "head_dim": 256,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 5120,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_value_head_dim": 128,
        "max_position_embeddings": 262144,
        "mlp_only_layers": [],
        "moe_intermediate_size": 512,
        "norm_topk_prob": True,
        "num_attention_heads": 16,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "num_hidden_layers": 48,
        "num_key_value_heads": 2,
        "partial_rotary_factor": 0.25,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 10000000,
        "router_aux_loss_coef": 0.001,
        "shared_expert_intermediate_size": 512,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
    "kimi_linear": {  # 48B-A3B
        "first_k_dense_replace": 1,
        "head_dim": 72,
        "hidden_act": "silu",
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "kv_lora_rank": 512,
        "linear_attn_config": {
            "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
            "head_dim": 128,
            "kda_layers": [1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15, 17, 18, 19, 21, 22, 23, 25, 26],
            "num_heads": 32,
            "short_conv_kernel_size": 4,
        },
        "mla_use_nope": True,
        "model_max_length": 1048576,
        "moe_intermediate_size": 1024,
        "moe_layer_freq": 1,
        "moe_renormalize": True,
        "moe_router_activation_func": "sigmoid",
        "num_attention_heads": 32,
        "num_expert_group": 1,
        "num_experts": 256,
        "num_experts_per_token": 8,
        "num_hidden_layers": 27,
        "num_key_value_heads": 32,
        "num_nextn_predict_layers": 0,
        "num_shared_experts": 1,
        "q_lora_rank": None,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "routed_scaling_factor": 2.446,
        "tie_word_embeddings": False,
        "topk_group": 1,
        "use_cache": True,
        "use_grouped_topk": True,
        "v_head_dim": 128,
        "vocab_size": 163840,
    },
    "bamba": {
        "attn_layer_indices": [9, 18, 27],
        "attn_rotary_emb": 64,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "mamba_chunk_size": 256,
        "mamba_conv_bias": True,
        "mamba_d_conv": 4,
        "mamba_d_head": 64,
        "mamba_d_state": 128,
        "mamba_expand": 2,
        "mamba_n_groups": 1,
        "mamba_n_heads": 128,
        "mamba_proj_bias": False,
        "max_position_embeddings": 262144,
        "mlp_bias": False,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "num_logits_to_keep": 1,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "vocab_size": 128256,
    },
    "mamba": {
        "conv_kernel": 4,
        "d_inner": 1536,
        "d_model": 768,
        "expand": 2,
        "fused_add_norm": True,
        "hidden_act": "silu",
        "hidden_size": 768,
        "intermediate_size": 1536,
        "layer_norm_epsilon": 1e-05,
        "n_layer": 24,
        "num_hidden_layers": 24,
        "pad_vocab_size_multiple": 8,
        "rescale_prenorm_residual": False,
        "residual_in_fp32": True,
        "rms_norm": True,
        "ssm_cfg": {},
        "state_size": 16,
        "time_step_floor": 0.0001,
        "time_step_init_scheme": "random",
        "time_step_max": 0.1,
        "time_step_min": 0.001,
        "time_step_rank": 48,
        "time_step_scale": 1.0,
        "use_bias": False,
        "use_conv_bias": True,
        "vocab_size": 50280,
    },
    "falcon_mamba": {
        "conv_kernel": 4,
        "expand": 16,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 8192,
        "layer_norm_epsilon": 1e-05,
        "mixer_rms_eps": 1e-06,
        "num_hidden_layers": 64,
        "rescale_prenorm_residual": False,
        "residual_in_fp32": True,
        "state_size": 16,
        "tie_word_embeddings": False,
        "time_step_rank": 256,
        "use_bias": False,
        "use_conv_bias": True,
        "vocab_size": 65024,
    },
    "mamba2": {
        "chunk_size": 256,
        "conv_kernel": 4,
        "expand": 2,
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "layer_norm_epsilon": 1e-05,
        "n_groups": 8,
        "norm_before_gate": True,
        "num_heads": 128,
        "num_hidden_layers": 64,
        "residual_in_fp32": True,
        "rms_norm": True,
        "state_size": 128,
        "tie_word_embeddings": False,
        "time_step_limit": [0.0, float("inf")],
        "time_step_rank": 256,
        "use_bias": False,
        "use_conv_bias": True,
        "vocab_size": 32768,
    },
    "nemotron_h": {  # NVIDIA-Nemotron-Nano-9B-v2
        "attention_bias": False,
        "chunk_size": 128,
        "conv_kernel": 4,
        "expand": 2,
        "head_dim": 128,
        "hidden_size": 4480,
        "hybrid_override_pattern": "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
        "intermediate_size": 15680,
        "layer_norm_epsilon": 1e-05,
        "mamba_head_dim": 80,
        "mamba_hidden_act": "silu",
        "mamba_num_heads": 128,
        "mamba_proj_bias": False,
        "max_position_embeddings": 131072,
        "mlp_bias": False,
        "mlp_hidden_act": "relu2",
        "n_groups": 8,
        "num_attention_heads": 40,
        "num_hidden_layers": 56,
        "num_key_value_heads": 8,
        "num_logits_to_keep": 1,
        "rescale_prenorm_residual": True,
        "residual_in_fp32": False,
        "rms_norm_eps": 1e-05,
        "sliding_window": None,
        "ssm_state_size": 128,
        "tie_word_embeddings": False,
        "time_step_floor": 0.0001,
        "time_step_limit": [0.0, float("inf")],
        "time_step_max": 0.1,
        "time_step_min": 0.001,
        "use_bias": False,
        "use_conv_bias": True,
        "use_mamba_kernels": True,
        "vocab_size": 131072,
    },
    "nemotron_h with experts": {  # NVIDIA-Nemotron-3-Nano-30B-A3B
        "attention_bias": False,
        "chunk_size": 128,
        "conv_kernel": 4,
        "expand": 2,
        "head_dim": 128,
        "hidden_dropout": 0.0,
        "hidden_size": 2688,
        "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
        "intermediate_size": 1856,
        "layer_norm_epsilon": 1e-05,
        "mamba_head_dim": 64,
        "mamba_hidden_act": "silu",
        "mamba_num_heads": 64,
        "mamba_proj_bias": False,
        "mamba_ssm_cache_dtype": "float32",
        "max_position_embeddings": 262144,
        "mlp_bias": False,
        "mlp_hidden_act": "relu2",
        "moe_intermediate_size": 1856,
        "moe_shared_expert_intermediate_size": 3712,
        "n_group": 1,
        "n_groups": 8,
        "n_routed_experts": 128,
        "n_shared_experts": 1,
        "norm_eps": 1e-05,
        "norm_topk_prob": True,
        "num_attention_heads": 32,
        "num_experts_per_tok": 6,
        "num_hidden_layers": 52,
        "num_key_value_heads": 2,
        "num_logits_to_keep": 1,
        "partial_rotary_factor": 1.0,
        "rescale_prenorm_residual": True,
        "residual_in_fp32": False,
        "rope_theta": 10000,
        "routed_scaling_factor": 2.5,
        "sliding_window": None,
        "ssm_state_size": 128,
        "tie_word_embeddings": False,
        "time_step_floor": 0.0001,
        "time_step_max": 0.1,
        "time_step_min": 0.001,
        "topk_group": 1,
        "use_bias": False,
        "use_conv_bias": True,
        "use_mamba_kernels": True,
        "vocab_size": 131072,
    },
    "phimoe": {  # Phi-3.5-MoE-instruct; the factors of its rope are of that number, not those
        "attention_bias": True,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "input_jitter_noise": 0.01,
        "intermediate_size": 6400,
        "lm_head_bias": True,
        "max_position_embeddings": 131072,
        "num_attention_heads": 32,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "num_local_experts": 16,
        "original_max_position_embeddings": 4096,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "long_factor": [1.02] * 64,
            "long_mscale": 1.243163121016122,
            "original_max_position_embeddings": 4096,
            "short_factor": [1.04] * 64,
            "short_mscale": 1.243163121016122,
            "type": "longrope",
        },
        "rope_theta": 10000.0,
        "router_aux_loss_coef": 0.0,
        "router_jitter_noise": 0.01,
        "sliding_window": 131072,
        "tie_word_embeddings": False,
        "vocab_size": 32064,
    },
    "hunyuan_v1_moe": {  # Hunyuan-A13B-Instruct
        "attention_bias": False,
        "attention_head_dim": 128,
        "cla_share_factor": 2,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 3072,
        "max_position_embeddings": 32768,
        "mlp_bias": False,
        "moe_drop_tokens": False,
        "moe_intermediate_size": [3072] * 32,
        "moe_layer_num_skipped": 0,
        "moe_random_routing_dropped_token": False,
        "moe_topk": [8] * 32,
        "norm_type": "rms",
        "num_attention_heads": 32,
        "num_experts": 64,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "num_shared_expert": [1] * 32,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {"alpha": 1000.0, "factor": 1.0, "type": "dynamic"},
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "use_cla": False,
        "use_mixed_mlp_moe": True,
        "use_qk_norm": True,
        "vocab_size": 128167,
    },
    "afmoe": {  # Trinity-Nano-Preview
        "global_attn_every_n_layers": 4,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "layer_types": [*["sliding_attention"] * 3, "full_attention"] * 14,
        "load_balance_coeff": 0.001,
        "max_position_embeddings": 131072,
        "moe_intermediate_size": 256,
        "mup_enabled": True,
        "n_group": 1,
        "num_attention_heads": 8,
        "num_dense_layers": 2,
        "num_expert_groups": 1,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 56,
        "num_key_value_heads": 2,
        "num_limited_groups": 1,
        "num_shared_experts": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 10000,
        "route_norm": True,
        "route_scale": 2.826,
        "score_func": "sigmoid",
        "sliding_window": 2048,
        "tie_word_embeddings": False,
        "topk_group": 1,
        "use_grouped_mm": True,
        "vocab_size": 200192,
    },
}
PARAMETERS = {
    "mixtral": 46_702_792_704,
    "qwen3_moe": 30_532_122_624,
    "qwen2_moe": 14_315_784_192,
    "gpt_oss": 20_914_757_184,
    "deepseek_v2": 15_706_484_224,
    "deepseek_v3": 671_026_419_200,
    "olmoe": 6_919_161_856,
    "granitemoe": 1_334_628_352,
    "granitemoehybrid": 6_939_037_248,
    "lfm2": 1_170_340_608,
    "qwen3_next": 79_674_391_296,
    "kimi_linear": 49_122_681_728,
    "bamba": 9_780_235_392,
    "mamba": 129_135_360,
    "falcon_mamba": 7_272_665_088,
    "mamba2": 7_285_403_648,
    "nemotron_h": 8_888_227_328,
    "nemotron_h with experts": 31_577_937_344 + 23 * 128,  # and the biases of the choice, which are not counted there
    "phimoe": 41_873_153_344,
    "hunyuan_v1_moe": 80_393_183_232,
    "afmoe": 6_120_003_328,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_have_the_published_number_of_parameters(name: str) -> None:
    config = PUBLISHED[name] | {"model_type": name.partition(" ")[0]}
    spec = architecture(config).spec(config)
    assert sum(prod(shape) for shape in spec.tensors().values()) == PARAMETERS[name]
    assert architecture(config).weights(spec, config).keys() == spec.tensors().keys()


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "t5", "is_encoder_decoder": True}, "encoder-decoder"),
        ({"model_type": "albert"}, "encoder, which generates no text"),
        ({"model_type": "xlstm"}, "Mamba"),
        ({"model_type": "rwkv"}, "recurrent"),
        ({"model_type": "jetmoe", "n_routed_experts": 256}, "mixture of experts"),
        ({"model_type": "llava", "vision_config": {}}, "images"),
        ({"model_type": "gpt_neo"}, "a decoder"),
    ],
)
def test_an_unknown_architecture_is_named_by_its_kind(config: dict[str, Any], said: str) -> None:
    with pytest.raises(UnknownArchitecture, match=f"{config['model_type']}.*{said}.*is not one of.*llama"):
        architecture(config)
