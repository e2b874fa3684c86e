"""GGUF files of models of transformers, written with the package gguf by the rules of llama.cpp's own converter."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import pytest
from numpy.typing import NDArray

gguf = pytest.importorskip("gguf", reason="GGUF files are written with the package gguf")

Array = NDArray[np.float32]
ARCHITECTURES = {
    **{"llama": "llama", "mistral": "llama", "mixtral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"},
    **{"qwen3_moe": "qwen3moe", "gemma2": "gemma2", "gemma3_text": "gemma3", "phi3": "phi3", "olmo2": "olmo2"},
    **{"olmoe": "olmoe", "smollm3": "smollm3", "granitemoe": "granitemoe", "bamba": "granitehybrid"},
    "granitemoehybrid": "granitehybrid",
    "lfm2": "lfm2",
}
PAIRED = ("llama", "smollm3", "granite", "granitemoe", "granitehybrid")
NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.qkv_proj": "attn_qkv", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "input_layernorm": "attn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate_up_proj": "ffn_up", "mlp.gate": "ffn_gate_inp",
    "mlp.experts.gate_up_proj": "ffn_gate_up_exps", "mlp.experts.down_proj": "ffn_down_exps",
    "block_sparse_moe.router": "ffn_gate_inp", "block_sparse_moe.experts.gate_up_proj": "ffn_gate_up_exps",
    "block_sparse_moe.experts.down_proj": "ffn_down_exps", "pre_ff_layernorm": "ffn_norm",
    "feed_forward.gate_proj": "ffn_gate", "feed_forward.up_proj": "ffn_up", "feed_forward.down_proj": "ffn_down",
    "conv.in_proj": "shortconv.in_proj", "conv.conv": "shortconv.conv", "conv.out_proj": "shortconv.out_proj",
    "operator_norm": "attn_norm", "ffn_norm": "ffn_norm", "feed_forward.w1": "ffn_gate", "feed_forward.w3": "ffn_up",
    "feed_forward.w2": "ffn_down", "self_attn.q_layernorm": "attn_q_norm", "self_attn.k_layernorm": "attn_k_norm",
    "self_attn.out_proj": "attn_output",
    "mamba.in_proj": "ssm_in", "mamba.out_proj": "ssm_out", "mamba.conv1d": "ssm_conv1d", "mamba.norm": "ssm_norm",
}  # fmt: skip
OUTER = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "model.final_layernorm.weight": "output_norm.weight",
    "model.embedding_norm.weight": "token_embd_norm.weight",
    "lm_head.weight": "output.weight",
}


class Drawn(NamedTuple):
    """A model without torch. config: with the names that transformers gives its numbers."""

    config: Any
    tensors: dict[str, Array]

    def state_dict(self) -> dict[str, Array]:
        return self.tensors


def write(model: Any, path: Path, kind: str | Mapping[str, str] = "F32", apart: bool = False, **extra: Any) -> Path:
    """Write a model as GGUF; matrices of whole blocks in `kind`, or in the first of several whose key is
    part of their name. apart: a tensor for each expert; extra: metadata by full name."""
    config, arch = model.config, architecture(model.config)
    writer = gguf.GGUFWriter(path, arch)
    _metadata(writer, config, arch)
    for key, value in extra.items():
        add_value(writer, key, value)
    for name, values in converted(model, arch).items():
        single = {name.replace("_exps", f".{e}"): one for e, one in enumerate(values)}
        for each, part in (single if apart and "_exps" in name else {name: values}).items():
            own = kind if isinstance(kind, str) else next(value for key, value in kind.items() if key in each)
            add_tensor(writer, each, part, own)
    finish(writer)
    return path


def architecture(config: Any) -> str:
    """llama.cpp's name for it."""
    found = ARCHITECTURES[config.model_type]
    every = found == "granitehybrid" and set(config.layer_types or []) == {"full_attention"}
    return "granite" if every and config.model_type != "bamba" else found


def add_tensor(writer: Any, name: str, values: Array, kind: str) -> None:
    number = gguf.GGMLQuantizationType[kind]
    if kind == "F32" or values.ndim == 1 or values.shape[-1] % gguf.GGML_QUANT_SIZES[number][0]:
        writer.add_tensor(name, np.ascontiguousarray(values, np.float32))
    elif kind in ("Q4_K", "Q5_K"):  # which the package gguf reads and does not write
        writer.add_tensor(name, drawn_k_blocks(kind, values.shape, crc32(name.encode())), raw_dtype=number)
    elif kind in DRAWN:
        writer.add_tensor(name, drawn_blocks(kind, values.shape, crc32(name.encode())), raw_dtype=number)
    else:
        writer.add_tensor(name, gguf.quants.quantize(np.ascontiguousarray(values), number), raw_dtype=number)


def drawn_k_blocks(kind: str, shape: tuple[int, ...], seed: int) -> Array:
    """Random super-blocks of 256 values of about 1 / sqrt(width), with scales of zero and minimums of both kinds."""
    rng, size = np.random.default_rng(seed), {"Q4_K": 144, "Q5_K": 176}[kind]
    blocks = rng.integers(0, 256, (np.prod(shape) // 256, size), np.uint8)
    step = rng.uniform(0.5, 1.0, (len(blocks), 1)) / (40 * (16 if kind == "Q4_K" else 32) * shape[-1] ** 0.5)
    halves = np.concatenate([step, step * (6 if kind == "Q4_K" else 12)], axis=1).astype(np.float16)
    blocks[:, :4] = halves.view(np.uint8)
    return blocks.reshape(*shape[:-1], -1)


# Where a block has its scales, and how much larger than the first its values are (root mean square).
DRAWN: dict[str, tuple[list[int], float]] = {
    "Q2_K": ([80, 82], 12.0),
    "Q3_K": ([108], 42.0),
    "Q6_K": ([208], 1370.0),
    "IQ4_NL": ([0], 70.0),
    "IQ4_XS": ([0], 1300.0),
}


def drawn_blocks(kind: str, shape: tuple[int, ...], seed: int) -> Array:
    """Random blocks of types that the package gguf reads and does not write, their values about 1 / sqrt(width)."""
    rng, (places, size) = np.random.default_rng(seed), DRAWN[kind]
    per, bytes_of = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    blocks = rng.integers(0, 256, (np.prod(shape) // per, bytes_of), np.uint8)
    step = rng.uniform(0.5, 1.0, (len(blocks), 1)) / (size * shape[-1] ** 0.5)
    for at, times in zip(places, (1.0, 1.5), strict=False):
        blocks[:, at : at + 2] = (step * times).astype(np.float16).view(np.uint8)
    return blocks.reshape(*shape[:-1], -1)


def add_value(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, list | bytes):
        writer.add_array(key, value)
    else:
        adds: dict[type, Any] = {
            bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string
        }  # fmt: skip
        adds[type(value)](key, value)


def finish(writer: Any) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _metadata(writer: Any, c: Any, arch: str) -> None:
    dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    rope = getattr(c, "rope_parameters", None) or {}
    full, kv = rope.get("full_attention", rope), c.num_key_value_heads
    if arch == "granitehybrid":
        attends = {i for i, kind in enumerate(c.layers_block_type) if kind in ("attention", "full_attention")}
        kv = [kv if i in attends else 0 for i in range(c.num_hidden_layers)]
    if arch == "lfm2":
        kv = [kv if kind == "full_attention" else 0 for kind in c.layer_types]
    rotated = int(dim * full.get("partial_rotary_factor", 0.5 if c.model_type == "bamba" else 1.0))
    facts: dict[str, Any] = {
        "block_count": c.num_hidden_layers,
        "context_length": c.max_position_embeddings,
        "embedding_length": c.hidden_size,
        "feed_forward_length": _inner_size(c),
        "attention.head_count": c.num_attention_heads,
        "attention.head_count_kv": kv,
        "attention.layer_norm_rms_epsilon": float(getattr(c, "rms_norm_eps", None) or c.norm_eps),
        "attention.key_length": dim,
        "attention.value_length": dim,
        "rope.dimension_count": rotated,
        "rope.freq_base": float(full.get("rope_theta", 10000.0)),
        "vocab_size": c.vocab_size,
        **_rope_scaling(full, c),
        **_experts(c),
        **_special(c, arch),
    }
    for key, value in facts.items():
        add_value(writer, f"{arch}.{key}", value)


def _inner_size(c: Any) -> int:
    """LFM2's is two thirds of the config's, stretched, rounded up."""
    if c.model_type != "lfm2":
        return int(c.intermediate_size)
    wide = int(c.block_ffn_dim_multiplier * int(2 * c.intermediate_size / 3))
    return -(-wide // c.block_multiple_of) * c.block_multiple_of


def _rope_scaling(rope: Mapping[str, Any], c: Any) -> dict[str, Any]:
    kind = rope.get("rope_type")
    if kind in ("linear", "yarn"):
        found = {"rope.scaling.type": kind, "rope.scaling.factor": float(rope["factor"])}
        if kind == "yarn":
            found["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
            found |= {f"rope.scaling.yarn_{key}": float(rope[key]) for key in ("beta_fast", "beta_slow")}
        return found
    if kind == "longrope":
        original = rope["original_max_position_embeddings"]
        scale = c.max_position_embeddings / original
        factor = float(np.sqrt(1 + np.log(scale) / np.log(original)))
        return {"rope.scaling.original_context_length": original, "rope.scaling.attn_factor": factor}
    return {}


def _experts(c: Any) -> dict[str, Any]:
    n = getattr(c, "num_local_experts", 0) or getattr(c, "num_experts", 0) or 0
    if not n:
        return {}
    found = {"expert_count": n, "expert_used_count": c.num_experts_per_tok}
    if c.model_type == "qwen3_moe":
        found["expert_feed_forward_length"] = c.moe_intermediate_size
    if c.model_type == "granitemoehybrid":
        found["expert_shared_feed_forward_length"] = c.shared_intermediate_size
    return found


def _special(c: Any, arch: str) -> dict[str, Any]:
    """What only some architectures have."""
    found: dict[str, Any] = {}
    if arch in ("gemma2", "gemma3", "phi3"):
        found["attention.sliding_window"] = c.sliding_window or 0
    if arch == "gemma2":
        found["attn_logit_softcapping"] = float(c.attn_logit_softcapping)
        found["final_logit_softcapping"] = float(c.final_logit_softcapping)
    if arch.startswith("granite") and c.model_type != "bamba":
        found["attention.scale"], found["embedding_scale"] = c.attention_multiplier, c.embedding_multiplier
        found["residual_scale"], found["logit_scale"] = c.residual_multiplier, c.logits_scaling
    if arch == "granitehybrid":
        found |= {
            "ssm.conv_kernel": c.mamba_d_conv,
            "ssm.inner_size": c.mamba_expand * c.hidden_size,
            "ssm.state_size": c.mamba_d_state,
            "ssm.time_step_rank": c.mamba_n_heads,
            "ssm.group_count": c.mamba_n_groups,
            "rope.scaling.finetuned": c.model_type == "bamba" or c.position_embedding_type == "rope",
        }
    if arch == "lfm2":
        found["shortconv.l_cache"] = c.conv_L_cache
    return found


def converted(model: Any, arch: str) -> dict[str, Array]:
    """The model's tensors by ggml's names, as llama.cpp wants them."""
    c, found = model.config, dict[str, Array]()
    dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    for name, parameter in model.state_dict().items():
        values = parameter if isinstance(parameter, np.ndarray) else parameter.float().numpy()
        if name == "lm_head.weight" and c.tie_word_embeddings:
            continue
        shift = 1.0 if "Gemma" in type(model).__name__ and name.endswith("norm.weight") else 0.0
        for theirs, part in _renamed(name, values + np.float32(shift) if shift else values, c):
            paired = arch in PAIRED and re.search(r"\.attn_[qk]\.(weight|bias)$", theirs)
            found[theirs] = _paired(part, dim) if paired else part
    return found | _divisors(c)


def _divisors(c: Any) -> dict[str, Array]:
    rope = getattr(c, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        return {f"rope_factors_{s}.weight": np.array(rope[f"{s}_factor"], np.float32) for s in ("short", "long")}
    if rope.get("rope_type") != "llama3":
        return {}
    dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    factor, low, high = rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"]
    length = rope["original_max_position_embeddings"]
    wave = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, dim, 2) / dim)
    smooth = (length / wave - low) / (high - low)
    between = 1 / ((1 - smooth) / factor + smooth)
    divisors = np.where(wave < length / high, 1.0, np.where(wave > length / low, factor, between))
    return {"rope_freqs.weight": divisors.astype(np.float32)}


def _paired(values: Array, dim: int) -> Array:
    """Rows of heads with the channels of the two halves in turns."""
    return values.reshape(-1, 2, dim // 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def _renamed(name: str, values: Array, c: Any) -> list[tuple[str, Array]]:
    if name in OUTER:
        return [(OUTER[name], values)]
    _, _, layer, rest = name.split(".", 3)
    blk = f"blk.{layer}."
    if rest.endswith(("mamba.A_log", "mamba.D")):
        return (
            [(f"{blk}ssm_a", -np.exp(values)[:, None])] if rest.endswith("log") else [(f"{blk}ssm_d", values[:, None])]
        )
    if rest == "mamba.dt_bias":
        return [(f"{blk}ssm_dt.bias", values)]
    stem, suffix = (rest, "weight") if rest.endswith("_proj") else rest.rsplit(".", 1)
    if stem == "shared_mlp.input_linear":
        gate, up = np.split(values, 2)
        shexp = "_shexp" if c.num_local_experts else ""
        return [(f"{blk}ffn_gate{shexp}.{suffix}", gate), (f"{blk}ffn_up{shexp}.{suffix}", up)]
    theirs = _name(stem, c)
    if stem in ("mamba.conv1d", "conv.conv") and suffix == "weight":
        values = values[:, 0]
    if stem == "mamba.norm":
        values = values.reshape(c.mamba_n_groups, -1)
    if theirs == "ffn_gate_up_exps" and c.model_type != "olmoe":  # one of them keeps the two in one tensor
        gate, up = np.split(values, 2, axis=1)
        return [(f"{blk}ffn_gate_exps.{suffix}", gate), (f"{blk}ffn_up_exps.{suffix}", up)]
    return [(f"{blk}{theirs}.{suffix}", values)]


def _name(stem: str, c: Any) -> str:
    if stem == "shared_mlp.output_linear":
        return "ffn_down_shexp" if c.num_local_experts else "ffn_down"
    if stem == "post_attention_layernorm":
        return "post_attention_norm" if c.model_type in ("gemma2", "gemma3_text", "olmo2") else "ffn_norm"
    norms = {"pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm"}
    return norms.get(stem) or NAMES[stem]
