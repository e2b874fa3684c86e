"""The config.json for the model in a GGUF file, by architecture.

`models/` reads it like any other config, so that an architecture's arithmetic is described once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edgedec.errors import UnknownArchitecture
from edgedec.export.gguf.diffusion import diffusion_config, llada, llada_moe
from edgedec.export.gguf.metadata import GgufFacts
from edgedec.export.gguf.ropes import rope_config
from edgedec.models._kinds import kind

Config = dict[str, Any]
# llama.cpp detects the 27B models of Gemma by their depth: they scale queries by hidden size over heads.
MAX_HEAD, MAX_CONTEXT = 1 << 13, 1 << 21
GEMMA_27B = {"gemma2": 46, "gemma3": 62}


def config_of(facts: GgufFacts) -> Config:
    """The config of the model; UnknownArchitecture if `models/` has no such architecture."""
    name = facts.architecture
    if name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        what = kind(_described(facts, name))
        raise UnknownArchitecture(f"{facts.file.path}: architecture {name!r:.40} ({what}) is not one of {known}")
    return ARCHITECTURES[name](facts) | diffusion_config(facts, name)


def _described(facts: GgufFacts, name: str) -> Config:
    """The config.json entries that describe the kind of such a model; clip is an image encoder for another model."""
    found: Config = {"model_type": name, "is_encoder_decoder": name == "t5"}
    found |= {"num_experts": 1} if facts.has("expert_count") else {}
    found |= {"ssm_state": 1} if facts.has("ssm.state_size") else {}
    return found | ({"vision_config": {}} if name == "clip" else {})


def _common(f: GgufFacts, model_type: str) -> Config:
    """The config entries of all architectures."""
    heads, hidden = f.whole("attention.head_count", least=1), f.whole("embedding_length", least=1)
    found: Config = {
        "model_type": model_type,
        "vocab_size": _rows(f, "token_embd.weight"),
        "hidden_size": hidden,
        "num_hidden_layers": f.whole("block_count", least=1, most=len(f.file.tensors)),
        "num_attention_heads": heads,
        "num_key_value_heads": f.whole("attention.head_count_kv", heads, least=1),
        "head_dim": head_dim(f),
        "intermediate_size": f.whole("feed_forward_length", 0),
        "max_position_embeddings": f.whole("context_length", least=1, most=MAX_CONTEXT),
        "rms_norm_eps": f.number("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in f.file.tensors,
    }
    if f.whole("attention.value_length", found["head_dim"]) != found["head_dim"]:
        raise f.fail(f.name("attention.value_length"), f"is not {found['head_dim']}, the length of keys")
    return found | rope_config(f, found["head_dim"], found["max_position_embeddings"])


def head_dim(f: GgufFacts) -> int:
    """The width of a head: given, or a share of the hidden size."""
    share = f.whole("embedding_length") // max(1, f.whole("attention.head_count"))
    return f.whole("attention.key_length", share, least=1, most=MAX_HEAD)


def _rows(f: GgufFacts, tensor: str) -> int:
    if tensor not in f.file.tensors:
        raise f.fail(tensor, "is missing: no such tensor")
    return f.file.tensors[tensor].shape[0]


def _experts(f: GgufFacts) -> int:
    """How many experts there are, which the tensors that stack them must have; older files have a tensor for each."""
    n = f.whole("expert_count", 0)
    if n and "blk.0.ffn_gate.0.weight" in f.file.tensors:
        return n
    stacked = [t.shape[0] for name, t in f.file.tensors.items() if name.endswith("_exps.weight")]
    if n and set(stacked) != {n}:
        raise f.fail(f.name("expert_count"), f"is {n}; the tensors *_exps.weight stack {stacked[:1] or 'none'}")
    return n


def _biased(f: GgufFacts, tensor: str) -> bool:
    """Has some layer this bias?"""
    return any(name.startswith("blk.") and name.endswith(f".{tensor}.bias") for name in f.file.tensors)


def _llama(f: GgufFacts) -> Config:
    """Llama and the models that llama.cpp stores as Llama: Mistral, and Mixtral if there are experts."""
    experts, window = _experts(f), f.whole("attention.sliding_window", 0)
    if experts:
        used = {"num_local_experts": experts, "num_experts_per_tok": f.whole("expert_used_count", least=1)}
        return _common(f, "mixtral") | used | {"sliding_window": window or None}
    if window:
        return _common(f, "mistral") | {"sliding_window": window}
    return _common(f, "llama") | {"attention_bias": _biased(f, "attn_q"), "mlp_bias": _biased(f, "ffn_gate")}


def _qwen2(f: GgufFacts) -> Config:
    return _common(f, "qwen2")


def _qwen3(f: GgufFacts) -> Config:
    return _common(f, "qwen3") | {"attention_bias": _biased(f, "attn_q")}


def _qwen3_moe(f: GgufFacts) -> Config:
    return _common(f, "qwen3_moe") | {
        "attention_bias": _biased(f, "attn_q"),
        "num_experts": _experts(f),
        "num_experts_per_tok": f.whole("expert_used_count", least=1),
        "moe_intermediate_size": f.whole("expert_feed_forward_length", least=1),
        "norm_topk_prob": True,
    }


def _gemma(f: GgufFacts, model_type: str) -> Config:
    found = _common(f, model_type)
    share = found["hidden_size"] // found["num_attention_heads"]
    big = found["num_hidden_layers"] == GEMMA_27B[f.architecture]
    return found | {
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": _biased(f, "attn_q"),
        "query_pre_attn_scalar": share if big else found["head_dim"],
    }


def _gemma2(f: GgufFacts) -> Config:
    return _gemma(f, "gemma2") | {
        "sliding_window": f.whole("attention.sliding_window", 4096, least=1),
        "attn_logit_softcapping": f.number("attn_logit_softcapping", 50.0) or None,
        "final_logit_softcapping": f.number("final_logit_softcapping", 30.0) or None,
    }


def _gemma3(f: GgufFacts) -> Config:
    found, window = _gemma(f, "gemma3_text"), f.whole("attention.sliding_window", 0)
    n, scaling = found["num_hidden_layers"], found.pop("rope_scaling", None)
    kinds = ["sliding_attention" if on else "full_attention" for on in _pattern(f, n, 6 if window else 1)]
    local = f.number("rope.freq_base_swa", 10000.0)
    return found | {
        "layer_types": kinds,
        "sliding_window": window or None,
        "final_logit_softcapping": f.number("final_logit_softcapping", 0.0) or None,
        "rope_parameters": {
            "full_attention": {"rope_theta": found.pop("rope_theta"), **(scaling or {"rope_type": "default"})},
            "sliding_attention": {"rope_theta": local, "rope_type": "default"},
        },
    }


def _pattern(f: GgufFacts, n: int, every: int) -> list[bool]:
    """Which layers have a window: all but every n-th, unless the file lists them."""
    if f.has("attention.sliding_window_pattern"):
        values = f.each("attention.sliding_window_pattern", n)
        if type(f.file.metadata[f.name("attention.sliding_window_pattern")]) is not int:
            return [bool(value) for value in values]
        every = values[0] or n + 1
    return [(i + 1) % every != 0 for i in range(n)]


def _phi3(f: GgufFacts) -> Config:
    found = _common(f, "phi3") | {"sliding_window": f.whole("attention.sliding_window", 0) or None}
    original = f.whole("rope.scaling.original_context_length", found["max_position_embeddings"], least=1)
    return found | {"original_max_position_embeddings": original}


def _olmo2(f: GgufFacts) -> Config:
    if f.whole("attention.sliding_window", 0):
        raise f.fail(f.name("attention.sliding_window"), "is set: an OLMo 3, which is not supported")
    return _common(f, "olmo2") | {"attention_bias": _biased(f, "attn_q")}


def _olmoe(f: GgufFacts) -> Config:
    experts = {"num_experts": _experts(f), "num_experts_per_tok": f.whole("expert_used_count")}
    return _common(f, "olmoe") | experts | {"attention_bias": _biased(f, "attn_q"), "norm_topk_prob": False}


def _smollm3(f: GgufFacts) -> Config:
    return _common(f, "smollm3") | {"attention_bias": _biased(f, "attn_q"), "no_rope_layer_interval": 4}


def _multipliers(f: GgufFacts, found: Config) -> Config:
    """Granite's factors, each where llama.cpp has none given as well."""
    usual = found["head_dim"] ** -0.5
    return {
        "embedding_multiplier": f.number("embedding_scale", 0.0) or 1.0,
        "attention_multiplier": f.number("attention.scale", 0.0) or usual,
        "residual_multiplier": f.number("residual_scale", 0.0) or 1.0,
        "logits_scaling": f.number("logit_scale", 0.0) or 1.0,
        "attention_bias": _biased(f, "attn_q"),
    }


def _granite(f: GgufFacts) -> Config:
    """Granite without Mamba: the dense ones are hybrids all of whose layers attend, and which have one MLP."""
    experts, shared = _experts(f), f.whole("expert_shared_feed_forward_length", 0)
    found = _common(f, "granitemoe" if experts and not shared else "granitemoehybrid")
    found |= _multipliers(f, found) | {
        "num_local_experts": experts,
        "num_experts_per_tok": f.whole("expert_used_count", 0),
    }
    if found["model_type"] == "granitemoe":
        return found
    kinds = ["full_attention"] * found["num_hidden_layers"]
    wide = shared if experts else _rows(f, "blk.0.ffn_gate.weight")
    return found | {"layer_types": kinds, "position_embedding_type": "rope", "shared_intermediate_size": wide}


def _granite_hybrid(f: GgufFacts) -> Config:
    """Layers without keys and values are Mamba-2. Bamba is the one that rotates a half of its heads."""
    found = _common(f, "granitemoehybrid") | _mamba(f)
    attends = [bool(n) for n in f.each("attention.head_count_kv", found["num_hidden_layers"])]
    if found.get("partial_rotary_factor") == 0.5:
        indices = [i for i, on in enumerate(attends) if on]
        biases = {"attention_bias": _biased(f, "attn_q"), "mlp_bias": _biased(f, "ffn_gate")}
        return found | biases | {"model_type": "bamba", "attn_layer_indices": indices}
    experts = _experts(f)
    shared = f.whole("expert_shared_feed_forward_length", 0) if experts else _rows(f, "blk.0.ffn_gate.weight")
    return (
        found
        | _multipliers(f, found)
        | {
            "layer_types": ["full_attention" if on else "linear_attention" for on in attends],
            "position_embedding_type": "rope" if f.flag("rope.scaling.finetuned", True) else None,
            "num_local_experts": experts,
            "num_experts_per_tok": f.whole("expert_used_count", 0),
            "shared_intermediate_size": shared,
        }
    )


def _mamba(f: GgufFacts) -> Config:
    inner, heads = f.whole("ssm.inner_size", least=1), f.whole("ssm.time_step_rank", least=1)
    hidden = f.whole("embedding_length", least=1)
    if inner % hidden or inner % heads:
        raise f.fail(f.name("ssm.inner_size"), f"{inner} is not whole times {hidden} channels and {heads} heads")
    return {
        "mamba_expand": inner // hidden,
        "mamba_n_heads": heads,
        "mamba_d_head": inner // heads,
        "mamba_d_state": f.whole("ssm.state_size", least=1),
        "mamba_n_groups": f.whole("ssm.group_count", least=1),
        "mamba_d_conv": f.whole("ssm.conv_kernel", least=1),
        "mamba_proj_bias": _biased(f, "ssm_in"),
    }


def _lfm2(f: GgufFacts) -> Config:
    """Layers without keys and values convolve. The width of the MLP in the file is the final one."""
    found = _common(f, "lfm2")
    attends = f.each("attention.head_count_kv", found["num_hidden_layers"])
    return {key: value for key, value in found.items() if key != "rms_norm_eps"} | {
        "norm_eps": found["rms_norm_eps"],
        "layer_types": ["full_attention" if n else "conv" for n in attends],
        "conv_L_cache": f.whole("shortconv.l_cache", least=1),
        "conv_bias": _biased(f, "shortconv.in_proj"),
        "block_auto_adjust_ff_dim": False,
    }


ARCHITECTURES: dict[str, Callable[[GgufFacts], Config]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3moe": _qwen3_moe,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "phi3": _phi3,
    "olmo2": _olmo2,
    "olmoe": _olmoe,
    "smollm3": _smollm3,
    "granite": _granite,
    "granitemoe": _granite,
    "granitehybrid": _granite_hybrid,
    "lfm2": _lfm2,
    "dream": lambda f: _common(f, "Dream"),
    "llada": lambda f: llada(f, _common(f, "llada"), _biased(f, "attn_q")),
    "llada-moe": lambda f: llada_moe(f, _common(f, "llada_moe"), _experts(f), _biased(f, "attn_q")),
}
# llama.cpp turns neighbouring channels together in these, so their q and k are stored in its order.
PAIRED = ("llama", "smollm3", "granite", "granitemoe", "granitehybrid", "llada")
