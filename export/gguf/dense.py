"""The configs of more dense decoders in GGUF files, and of state spaces alone.

What llama.cpp takes from the tensors that are there, and not from the metadata, is read so here too.
"""

from __future__ import annotations

from collections.abc import Callable

from edgedec.export.gguf.common import MAX_HEAD, Config, biased, common, headless, pattern, rows, turned_share, without
from edgedec.export.gguf.metadata import GgufFacts

_ROPE = ("rope_theta", "rope_scaling", "partial_rotary_factor")


def _layered(f: GgufFacts, model_type: str, eps: str = "layer_norm_eps") -> Config:
    """Of a model whose norms are LayerNorms."""
    return common(f, model_type, eps) | {"partial_rotary_factor": turned_share(f)}


def _unturned(f: GgufFacts, model_type: str) -> Config:
    return without(common(f, model_type, "layer_norm_epsilon"), *_ROPE, "head_dim")


def _has(f: GgufFacts, tensor: str) -> bool:
    return f"blk.0.{tensor}" in f.file.tensors


def _stablelm(f: GgufFacts) -> Config:
    return _layered(f, "stablelm") | {
        "use_qkv_bias": biased(f, "attn_q"),
        "use_parallel_residual": not _has(f, "ffn_norm.weight"),
        "qk_layernorm": _has(f, "attn_q_norm.weight"),
    }


def _gptneox(f: GgufFacts) -> Config:
    beside = f.flag("use_parallel_residual", True)
    return _layered(f, "gpt_neox") | {"use_parallel_residual": beside, "attention_bias": biased(f, "attn_qkv")}


def _gpt2(f: GgufFacts) -> Config:
    return _unturned(f, "gpt2") | {"max_position_embeddings": rows(f, "position_embd.weight")}


def _starcoder(f: GgufFacts) -> Config:
    found = _unturned(f, "gpt_bigcode")
    return found | {
        "multi_query": found["num_key_value_heads"] == 1,
        "max_position_embeddings": rows(f, "position_embd.weight"),
    }


def _bloom(f: GgufFacts) -> Config:
    inner, found = f.whole("feed_forward_length", 0), _unturned(f, "bloom")
    if inner != 4 * found["hidden_size"]:
        raise f.fail(f.name("feed_forward_length"), f"is {inner}, not four times the state")
    return without(found, "intermediate_size", "max_position_embeddings", "num_key_value_heads")


def _mpt(f: GgufFacts) -> Config:
    found = _unturned(f, "mpt")
    ratio, rest = divmod(found["intermediate_size"], found["hidden_size"])
    if rest:
        raise f.fail(f.name("feed_forward_length"), f"{found['intermediate_size']} is not whole times the state")
    own = {
        "clip_qkv": f.number("attention.clamp_kqv", 0.0) or None,
        "alibi_bias_max": f.number("attention.max_alibi_bias", 8.0),
    }
    found |= {"max_seq_len": found["max_position_embeddings"], "expansion_ratio": ratio, "attn_config": own}
    return without(found, "intermediate_size", "max_position_embeddings")


def _falcon(f: GgufFacts) -> Config:
    found, two = common(f, "falcon", "layer_norm_epsilon"), _has(f, "attn_norm_2.weight")
    kv = found["num_key_value_heads"]
    return without(found, "head_dim") | {
        "new_decoder_architecture": two or kv > 1,
        "num_ln_in_parallel_attn": 2 if two else 1,
        "multi_query": kv == 1,
        "bias": biased(f, "attn_qkv"),
    }


def _olmo(f: GgufFacts) -> Config:
    clip = f.number("attention.clamp_kqv", 0.0) or None
    found = common(f, "olmo", "layer_norm_epsilon") | {"clip_qkv": clip}
    return without(found, "layer_norm_epsilon")  # 1e-5, as its code has it


def _cohere(f: GgufFacts) -> Config:
    return common(f, "cohere", "layer_norm_eps") | {
        "logit_scale": f.number("logit_scale"),
        "use_qk_norm": _has(f, "attn_q_norm.weight"),
        "attention_bias": biased(f, "attn_q"),
    }


def _cohere2(f: GgufFacts) -> Config:
    return common(f, "cohere2", "layer_norm_eps") | {
        "logit_scale": f.number("logit_scale"),
        "sliding_window": f.whole("attention.sliding_window", least=1),
        "attention_bias": biased(f, "attn_q"),
    }


def _exaone4(f: GgufFacts) -> Config:
    found, window = common(f, "exaone4"), f.whole("attention.sliding_window", 0) or None
    slides = pattern(f, found["num_hidden_layers"], 4)
    kinds = ["sliding_attention" if on and window else "full_attention" for on in slides]
    return found | {"sliding_window": window, "layer_types": kinds}


def _nemotron(f: GgufFacts) -> Config:
    biases = {"attention_bias": biased(f, "attn_q"), "mlp_bias": biased(f, "ffn_up")}
    return _layered(f, "nemotron", "norm_eps") | biases


def _glm4(f: GgufFacts) -> Config:
    return common(f, "glm4") | {"partial_rotary_factor": turned_share(f), "attention_bias": biased(f, "attn_q")}


def _seed_oss(f: GgufFacts) -> Config:
    return common(f, "seed_oss") | {
        "attention_bias": biased(f, "attn_q"),
        "attention_out_bias": biased(f, "attn_output"),
        "mlp_bias": biased(f, "ffn_gate"),
    }


def _minicpm(f: GgufFacts) -> Config:
    """Where the file has no multipliers, they are those of MiniCPM-2B. Biases of attention are no part of a file: the
    converter would leave those of q and k in another order than their matrices."""
    if f.whole("expert_count", 0):
        raise f.fail(f.name("expert_count"), "is set: MiniCPM with experts is not supported")
    found = common(f, "minicpm")
    n, hidden = found["num_hidden_layers"], found["hidden_size"]
    depth = f.number("residual_scale", 0.0) * n**0.5 or 1.4
    divisor = f.number("logit_scale", 0.0) or hidden / 256
    base = round(hidden / divisor)
    if divisor < 0 or base < 1 or abs(hidden / base - divisor) > 1e-4 * divisor:
        raise f.fail(f.name("logit_scale"), f"is {divisor:g}, which is not {hidden} by a whole number")
    return without(found, "head_dim") | {
        "scale_emb": f.number("embedding_scale", 0.0) or 12.0,
        "scale_depth": depth,
        "dim_model_base": base,
    }


def _mistral3(f: GgufFacts) -> Config:
    """Ministral 3 if queries grow with positions, which they do beyond what a bundle reads; else a Mistral."""
    if f.has("attention.temperature_scale"):
        return common(f, "ministral3", alike=True)
    return common(f, "mistral") | {"sliding_window": f.whole("attention.sliding_window", 0) or None}


def _jais2(f: GgufFacts) -> Config:
    biases = {"attention_bias": biased(f, "attn_q"), "mlp_bias": biased(f, "ffn_up")}
    return common(f, "jais2", "layer_norm_eps") | biases


def _state_spaces(f: GgufFacts, model_type: str) -> Config:
    """Of Mamba and Mamba-2, which have no heads of attention."""
    return {
        "model_type": model_type,
        "vocab_size": rows(f, "token_embd.weight"),
        "hidden_size": f.whole("embedding_length", least=1),
        "num_hidden_layers": f.whole("block_count", least=1, most=len(f.file.tensors)),
        "state_size": f.whole("ssm.state_size", least=1),
        "conv_kernel": f.whole("ssm.conv_kernel", least=1),
        "layer_norm_epsilon": f.number("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in f.file.tensors,
        "use_bias": biased(f, "ssm_in"),
    }


def _mamba(f: GgufFacts) -> Config:
    found = _state_spaces(f, "falcon_mamba" if f.flag("ssm.dt_b_c_rms", False) else "mamba")
    inner = f.whole("ssm.inner_size", least=1)
    return found | {"intermediate_size": inner, "time_step_rank": f.whole("ssm.time_step_rank", least=1)}


def _mamba2(f: GgufFacts) -> Config:
    found, inner = _state_spaces(f, "mamba2"), f.whole("ssm.inner_size", least=1)
    hidden, n = found["hidden_size"], f.whole("ssm.time_step_rank", least=1)
    if inner % hidden or inner % n:
        raise f.fail(f.name("ssm.inner_size"), f"{inner} is not whole times {hidden} channels and {n} heads")
    sizes = {"num_heads": n, "head_dim": inner // n, "expand": inner // hidden}
    return found | sizes | {"n_groups": f.whole("ssm.group_count", least=1)}


def _rwkv7(f: GgufFacts) -> Config:
    found = without(headless(f, "rwkv7", "norm_eps"), "max_position_embeddings")
    ranks = {"decay": "decay", "a": "iclr", "v": "value_residual_mix", "gate": "gate"}
    return found | {
        "head_dim": f.whole("wkv.head_size", least=1, most=MAX_HEAD),
        "norm_first": "token_embd_norm.weight" in f.file.tensors,
        **{f"{ours}_low_rank_dim": f.whole(f"attention.{theirs}_lora_rank", least=1) for ours, theirs in ranks.items()},
    }


DENSE: dict[str, Callable[[GgufFacts], Config]] = {
    "gemma": lambda f: (
        common(f, "gemma") | {"hidden_activation": "gelu_pytorch_tanh", "attention_bias": biased(f, "attn_q")}
    ),
    "starcoder2": lambda f: common(f, "starcoder2", "norm_epsilon") | {"use_bias": biased(f, "attn_q")},
    "stablelm": _stablelm,
    "phi2": lambda f: _layered(f, "phi"),
    "gptneox": _gptneox,
    "gpt2": _gpt2,
    "starcoder": _starcoder,
    "bloom": _bloom,
    "mpt": _mpt,
    "falcon": _falcon,
    "olmo": _olmo,
    "command-r": _cohere,
    "cohere2": _cohere2,
    "glm4": _glm4,
    "exaone4": _exaone4,
    "nemotron": _nemotron,
    "ernie4_5": lambda f: common(f, "ernie4_5") | {"use_bias": biased(f, "attn_q")},
    "arcee": lambda f: common(f, "arcee") | {"attention_bias": biased(f, "attn_q"), "mlp_bias": biased(f, "ffn_up")},
    "seed_oss": _seed_oss,
    "hunyuan-dense": lambda f: common(f, "hunyuan_v1_dense") | {"attention_bias": biased(f, "attn_q")},
    "bitnet": lambda f: common(f, "bitnet"),
    "minicpm": _minicpm,
    "mistral3": _mistral3,
    "jais2": _jais2,
    "apertus": lambda f: common(f, "apertus") | {"attention_bias": biased(f, "attn_q")},
    "mamba": _mamba,
    "mamba2": _mamba2,
    "rwkv7": _rwkv7,
}
