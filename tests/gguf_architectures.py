"""GGUF files of further models of the zoo: ggml's names by the package gguf, and what llama.cpp's converter changes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf_gemma3n as gemma3n
import gguf_gemma4 as gemma4
import gguf_hybrids as hybrids
import gguf_mixtures as mixtures
import gguf_rwkv7 as rwkv7
import numpy as np
import zoo
from ggufs import Array, _divisors, _paired, add_value, finish, gguf

UNBOUNDED = {"time_step_limit": [0.0, float("inf")]}
MINISTRAL_ROPE = zoo.YARN | {"original_max_position_embeddings": 48, "llama_4_scaling_beta": 0.1} | {
    "mscale": 1.0, "mscale_all_dim": 1.0,
}  # fmt: skip
HALF = {"rope_parameters": zoo.HALF_ROPE}
# llama.cpp's name of each, and the model: the zoo's, without what a GGUF cannot say.
MODELS: dict[str, tuple[str, Callable[[], Any]]] = {
    "gemma": ("gemma", zoo._causal("Gemma", head_dim=16)),
    "starcoder2": ("starcoder2", zoo._causal("Starcoder2", sliding_window=None, norm_epsilon=1e-3)),
    "starcoder2_unbiased": ("starcoder2", zoo._causal("Starcoder2", 1, sliding_window=None, use_bias=False)),
    "stablelm": ("stablelm", zoo.ZOO["stablelm"]),
    "stablelm_beside": ("stablelm", zoo.ZOO["stablelm_beside"]),
    "phi": ("phi2", zoo.ZOO["phi"]),
    "gpt_neox": ("gptneox", zoo.ZOO["gpt_neox"]),
    "gpt_neox_in_turn": (
        "gptneox", zoo._causal("GPTNeoX", 1, **zoo.HEADS, **HALF, use_parallel_residual=False)
    ),
    "gpt2": ("gpt2", zoo._older("GPT2", n_inner=72, n_positions=96)),
    "gpt_bigcode": ("starcoder", zoo.ZOO["gpt_bigcode"]),
    "bloom": ("bloom", zoo.ZOO["bloom"]),
    "mpt": ("mpt", zoo.ZOO["mpt"]),
    "falcon": ("falcon", zoo.ZOO["falcon"]),
    "falcon_grouped": ("falcon", zoo.ZOO["falcon_grouped"]),
    "olmo": ("olmo", zoo.ZOO["olmo"]),
    "cohere": ("command-r", zoo._causal("Cohere", use_qk_norm=True, logit_scale=0.7, tie_word_embeddings=True)),
    "cohere2": ("cohere2", zoo.ZOO["cohere2"]),
    "glm4": ("glm4", zoo.ZOO["glm4"]),
    "glm4_biased": ("glm4", zoo._causal("Glm4", 1, head_dim=16, **HALF)),
    "exaone4": ("exaone4", zoo.ZOO["exaone4"]),
    "exaone4_full": ("exaone4", zoo.ZOO["exaone4_full"]),
    "nemotron": ("nemotron", zoo.ZOO["nemotron"]),
    "ernie4_5": ("ernie4_5", zoo.ZOO["ernie4_5"]),
    "arcee": ("arcee", zoo.ZOO["arcee"]),
    "seed_oss": ("seed_oss", zoo.ZOO["seed_oss"]),
    "hunyuan_v1_dense": ("hunyuan-dense", zoo._causal("HunYuanDenseV1", head_dim=12, attention_bias=True)),
    "bitnet": ("bitnet", zoo._causal("BitNet", tie_word_embeddings=True)),
    "minicpm": ("minicpm", zoo.ZOO["minicpm"]),
    "minicpm_usual": ("minicpm", zoo._causal("MiniCPM", scale_emb=12, scale_depth=1.4, dim_model_base=256)),
    "apertus": ("apertus", zoo.ZOO["apertus"]),
    "ministral3": ("mistral3", zoo._causal("Ministral3", head_dim=16, rope_parameters=MINISTRAL_ROPE)),
    "mistral": ("mistral3", zoo._causal("Mistral", head_dim=16, sliding_window=None)),
    "jais2": ("jais2", zoo.ZOO["jais2"]),
    "qwen2_moe": (
        "qwen2moe",
        zoo._causal("Qwen2Moe", **zoo.SHARED | zoo.EXPERTS, norm_topk_prob=False, decoder_sparse_step=1),
    ),
    "glm4_moe": ("glm4moe", zoo.ZOO["glm4_moe"]),
    "glm4_moe_plain": ("glm4moe", zoo._causal(
        "Glm4Moe", 1, head_dim=24, **zoo.DEEPSEEK_EXPERTS | {"norm_topk_prob": False, "n_shared_experts": 2},
    )),
    "gpt_oss": ("gpt-oss", zoo.ZOO["gpt_oss"]),
    "lfm2_moe": ("lfm2moe", zoo._causal(
        "Lfm2Moe", **zoo.EXPERTS, num_dense_layers=1, num_experts=5, moe_intermediate_size=16,
        layer_types=["conv", "full_attention", "conv"],
    )),
    "mamba": ("mamba", zoo._alone("Mamba", expand=2, time_step_rank=5)),
    "falcon_mamba": ("mamba", zoo._alone("FalconMamba", expand=2, time_step_rank=5)),
    "mamba2": (
        "mamba2",
        zoo._alone("Mamba2", num_heads=6, head_dim=16, n_groups=2, expand=2, **UNBOUNDED),
    ),
    **mixtures.MODELS,
    **hybrids.MODELS,
    **gemma4.MODELS,
    **gemma3n.MODELS,
    **rwkv7.MODELS,
}  # fmt: skip
EPSILONS = ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps", "rms_norm_eps")
# Those of RMSNorms under another name, and of norms whose weights are stored less 1.
RMS = ("mamba", "falcon_mamba", "mamba2")
LESS_ONE = ("gemma", "nemotron")
# llama.cpp's converter brings the halves of heads together in these.
ORDERED = ("olmo", "arcee", "minicpm", "ministral3", "mistral")


def write(name: str, path: Path, **changed: Any) -> tuple[Any, Path]:
    """The model of that name, and its file; changed: metadata that is not as the converter writes it."""
    arch, make = MODELS[name]
    model = make()
    writer = gguf.GGUFWriter(path, arch)
    for key, value in (facts(model.config) | mixtures.learned(model) | changed).items():
        add_value(writer, key if key.startswith(("xielu.", "tokenizer.")) else f"{arch}.{key}", value)
    for tensor, values in converted(model, arch).items():
        writer.add_tensor(tensor, np.ascontiguousarray(values, np.float32))
    finish(writer)
    return model, path


def facts(c: Any) -> dict[str, Any]:
    """The metadata that the converter writes of a config."""
    kind = c.model_type
    key = next(key for key in EPSILONS if getattr(c, key, None)) if kind != "olmo" else ""
    rms = key == "rms_norm_eps" or kind in (*RMS, "lfm2_moe")
    found: dict[str, Any] = {
        "block_count": c.num_hidden_layers,
        "context_length": 96 if kind in ("bloom", *RMS) else _length(c),
        "embedding_length": c.hidden_size,
        f"attention.layer_norm_{'rms_' if rms else ''}epsilon": float(getattr(c, key, 1e-5)),
        "vocab_size": c.vocab_size,
    }
    if kind == "rwkv7":
        return found | rwkv7.own(c)
    if kind in RMS:
        return found | _state_space(c)
    return found | _heads(c) | _own(c) | mixtures.own(c) | hybrids.own(c) | gemma4.own(c) | gemma3n.own(c)


def _length(c: Any) -> int:
    return getattr(c, "max_seq_len", None) or c.max_position_embeddings


def _heads(c: Any) -> dict[str, Any]:
    n, grouped = c.num_attention_heads, getattr(c, "new_decoder_architecture", False)
    kv = getattr(c, "num_key_value_heads", None) or n
    if hasattr(c, "multi_query"):
        kv = c.num_kv_heads if grouped else 1 if c.multi_query else n
    dim = getattr(c, "head_dim", None) or c.hidden_size // n
    sizes = (getattr(c, key, None) for key in ("n_inner", "ffn_hidden_size", "intermediate_size"))
    inner = (
        c.expansion_ratio * c.hidden_size if c.model_type == "mpt" else next((s for s in sizes if s), 4 * c.hidden_size)
    )
    rope = getattr(c, "rope_parameters", None) or {}
    return {
        "attention.head_count": n,
        "attention.head_count_kv": kv,
        "attention.key_length": dim,
        "attention.value_length": dim,
        "feed_forward_length": inner,
        "rope.dimension_count": int(dim * (rope.get("partial_rotary_factor") or 1.0)),
        "rope.freq_base": float(rope.get("rope_theta", 10000.0)),
    }


def _own(c: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if c.model_type == "gpt_neox":
        found["use_parallel_residual"] = c.use_parallel_residual
    if c.model_type == "mpt":
        found |= {"attention.clamp_kqv": c.attn_config.clip_qkv, "attention.max_alibi_bias": 8.0}
    if c.model_type == "olmo":
        found["attention.clamp_kqv"] = c.clip_qkv
    if c.model_type.startswith("cohere"):
        found["logit_scale"] = float(c.logit_scale)
    if c.model_type in ("cohere2", "exaone4") and c.sliding_window:
        found["attention.sliding_window"] = c.sliding_window
    if c.model_type == "exaone4" and c.sliding_window:
        found["attention.sliding_window_pattern"] = [kind == "sliding_attention" for kind in c.layer_types]
    if c.model_type in ("qwen2_moe", "lfm2_moe"):
        found |= {"expert_count": c.num_experts, "expert_used_count": c.num_experts_per_tok}
        found["expert_feed_forward_length"] = c.moe_intermediate_size
    if c.model_type == "lfm2_moe":
        found |= {"leading_dense_block_count": c.num_dense_layers, "shortconv.l_cache": c.conv_L_cache}
        attends = [kind == "full_attention" for kind in c.layer_types]
        found["attention.head_count_kv"] = [c.num_key_value_heads * on for on in attends]
    if c.model_type == "glm4_moe":
        found |= {"expert_count": c.n_routed_experts, "expert_used_count": c.num_experts_per_tok}
        found |= {"expert_feed_forward_length": c.moe_intermediate_size, "expert_shared_count": c.n_shared_experts}
        found |= {"leading_dense_block_count": c.first_k_dense_replace, "expert_gating_func": 2}
        found |= {"expert_weights_scale": float(c.routed_scaling_factor), "expert_weights_norm": c.norm_topk_prob}
        found |= {"expert_group_count": c.n_group, "expert_group_used_count": c.topk_group}
        # The converter counts a layer that only drafts.
        found |= {"block_count": c.num_hidden_layers + 1, "nextn_predict_layers": 1}
    if c.model_type == "gpt_oss":
        found |= {"expert_count": c.num_local_experts, "expert_used_count": c.num_experts_per_tok}
        found |= {"expert_feed_forward_length": c.intermediate_size, "attention.sliding_window": c.sliding_window}
        rope = c.rope_parameters
        found |= {"rope.scaling.type": "yarn", "rope.scaling.factor": float(rope["factor"])}
        found["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
        found |= {f"rope.scaling.yarn_{key}": float(rope[key]) for key in ("beta_fast", "beta_slow")}
    if c.model_type == "ministral3":
        found |= mixtures.yarn(c.rope_parameters) | {"rope.scaling.yarn_log_multiplier": 1.0}
        found["attention.temperature_scale"] = c.rope_parameters["llama_4_scaling_beta"]
    if c.model_type == "qwen2_moe":
        found["expert_shared_feed_forward_length"] = c.shared_expert_intermediate_size
    return found


def _state_space(c: Any) -> dict[str, Any]:
    return {
        "ssm.conv_kernel": c.conv_kernel,
        "ssm.inner_size": c.expand * c.hidden_size,
        "ssm.state_size": c.state_size,
        "ssm.time_step_rank": c.num_heads if c.model_type == "mamba2" else c.time_step_rank,
        **({"ssm.group_count": c.n_groups} if c.model_type == "mamba2" else {}),
        **({"ssm.dt_b_c_rms": True} if c.model_type == "falcon_mamba" else {}),
    }


def converted(model: Any, arch: str) -> dict[str, Array]:
    """The model's tensors by ggml's names, as llama.cpp wants them."""
    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names, found, c = gguf.get_tensor_name_map(number, model.config.num_hidden_layers), dict[str, Array](), model.config
    norms: dict[str, list[Array]] = {}
    found |= mixtures.stacked(model)
    found |= _divisors(c) | gemma4.divisors(c) | rwkv7.together(model) | gemma3n.together(model)
    for name, parameter in model.state_dict().items():
        values = parameter.float().numpy().astype(np.float32, copy=False)
        if name in ("lm_head.weight", "embed_out.weight") and c.tie_word_embeddings:
            continue
        if c.model_type in LESS_ONE and name.endswith("norm.weight"):
            values = values + 1
        if "layernorm.norms." in name:  # StableLM has a tensor for each head
            norms.setdefault(name.partition(".norms.")[0], []).append(values)
            continue
        for theirs, part in _changed(name, values, names, c):
            found[theirs] = part
    if c.model_type == "glm4_moe":
        found[f"blk.{c.num_hidden_layers}.nextn.enorm.weight"] = np.ones(c.hidden_size, np.float32)
    for stem, each in norms.items():
        found[f"{names.get_name(stem)}.weight"] = np.stack(each)
    return found


def _changed(name: str, values: Array, names: Any, c: Any) -> list[tuple[str, Array]]:
    for one in (mixtures, hybrids, gemma4, gemma3n, rwkv7):
        if (found := one.changed(name, values, names, c)) is not None:
            return found
    stem, _, suffix = name.rpartition(".")
    if suffix in ("A_log", "D"):
        theirs = names.get_name(name)
        values = -np.exp(values) if suffix == "A_log" else values
        return [(theirs, values[:, None] if c.model_type == "mamba2" else values)]
    if suffix == "e_score_correction_bias":
        return [(f"{names.get_name(name.removesuffix('_bias'))}.bias", values)]
    if suffix == "expert_bias":
        return [(f"{names.get_name(name)}.bias", values)]
    if suffix == "dt_bias":
        return [(f"{names.get_name(f'{stem}.dt_proj') or names.get_name(name)}.bias", values)]
    if c.model_type == "gpt_oss" and (".experts." in name or name.endswith("sinks")):
        return _of_gpt_oss(name, values, names)
    if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        blk = "blk." + re.search(r"\.(\d+)\.", name)[1]  # type: ignore[index]
        if "down" in name:
            return [(f"{blk}.ffn_down_exps.weight", values)]
        gate, up = np.split(values, 2, axis=1)
        return [(f"{blk}.ffn_gate_exps.weight", gate), (f"{blk}.ffn_up_exps.weight", up)]
    theirs = names.get_name(stem) or names.get_name(stem.removeprefix("transformer.")) or _by_hand(stem)
    if c.model_type == "gpt2" and re.search(r"\.c_(attn|proj|fc)\.weight", name):
        values = values.T
    if stem.endswith("query_key_value"):
        values = _unfused(values, c)
    if c.model_type in ORDERED and re.search(r"attn_[qk]$", theirs):
        values = _paired(values, getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads)
    if stem.endswith(("conv1d", "conv.conv")) and suffix == "weight":
        values = values[:, 0]
    if c.model_type == "mamba2" and stem.endswith("mixer.norm"):
        values = values.reshape(c.n_groups, -1)
    if stem.endswith("shared_expert_gate"):
        values = values[0]
    return [(f"{theirs}.{suffix}", values)]


def _of_gpt_oss(name: str, values: Array, names: Any) -> list[tuple[str, Array]]:
    """Its matrices of experts lie the other way, gate and up side by side."""
    if name.endswith("sinks"):
        return [(f"{names.get_name(name)}.weight", values)]
    blk, suffix = "blk." + name.split(".")[2], "bias" if name.endswith("_bias") else "weight"
    values = values if suffix == "bias" else values.swapaxes(1, 2)
    if "down_proj" in name:
        return [(f"{blk}.ffn_down_exps.{suffix}", values)]
    return [(f"{blk}.ffn_{part}_exps.{suffix}", values[:, i::2]) for i, part in enumerate(("gate", "up"))]


def _by_hand(stem: str) -> str:
    """BitNet's norms, which the converter names itself."""
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}." + {"self_attn.attn_sub_norm": "attn_sub_norm", "mlp.ffn_sub_norm": "ffn_sub_norm"}[rest]


def _unfused(values: Array, c: Any) -> Array:
    """Kv head by kv head its queries, its key and its value, as all queries, all keys, all values."""
    n, kv = c.num_attention_heads, c.num_attention_heads
    if c.model_type == "falcon":
        kv = c.num_kv_heads if c.new_decoder_architecture else 1 if c.multi_query else n
    parts = values.reshape(kv, n // kv + 2, c.hidden_size // n, *values.shape[1:])
    pieces = (parts[:, :-2], parts[:, -2:-1], parts[:, -1:])
    return np.concatenate([piece.reshape(-1, *values.shape[1:]) for piece in pieces])
