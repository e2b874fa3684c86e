"""The config.json for the model in a GGUF file, by architecture.

`models/` reads it like any other config, so that an architecture's arithmetic is described once.
"""

from __future__ import annotations

from collections.abc import Callable

from edgedec.errors import UnknownArchitecture
from edgedec.export.gguf.common import Config, biased, common, expert_count, of_experts, pattern, rows
from edgedec.export.gguf.dense import DENSE
from edgedec.export.gguf.diffusion import diffusion_config, llada, llada_moe
from edgedec.export.gguf.encoders import ENCODERS
from edgedec.export.gguf.gemma3n import GEMMA3N
from edgedec.export.gguf.gemma4 import GEMMA4
from edgedec.export.gguf.hybrids import HYBRIDS
from edgedec.export.gguf.latent import LATENT
from edgedec.export.gguf.metadata import GgufFacts
from edgedec.export.gguf.mixtures import MIXTURES
from edgedec.models._kinds import kind

# llama.cpp detects the 27B models of Gemma by their depth: they scale queries by hidden size over heads.
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


def _llama(f: GgufFacts) -> Config:
    """Llama and the models that llama.cpp stores as Llama: Mistral, and Mixtral if there are experts."""
    experts, window = expert_count(f), f.whole("attention.sliding_window", 0)
    if experts:
        used = {"num_local_experts": experts, "num_experts_per_tok": f.whole("expert_used_count", least=1)}
        return common(f, "mixtral") | used | {"sliding_window": window or None}
    if window:
        return common(f, "mistral") | {"sliding_window": window}
    return common(f, "llama") | {"attention_bias": biased(f, "attn_q"), "mlp_bias": biased(f, "ffn_gate")}


def _qwen2(f: GgufFacts) -> Config:
    return common(f, "qwen2")


def _qwen3(f: GgufFacts) -> Config:
    return common(f, "qwen3") | {"attention_bias": biased(f, "attn_q")}


def _qwen3_moe(f: GgufFacts) -> Config:
    return common(f, "qwen3_moe") | {
        "attention_bias": biased(f, "attn_q"),
        **of_experts(f),
        "norm_topk_prob": True,
    }


def _gemma(f: GgufFacts, model_type: str) -> Config:
    found = common(f, model_type)
    share = found["hidden_size"] // found["num_attention_heads"]
    big = found["num_hidden_layers"] == GEMMA_27B[f.architecture]
    return found | {
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": biased(f, "attn_q"),
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
    kinds = ["sliding_attention" if on else "full_attention" for on in pattern(f, n, 6 if window else 1)]
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


def _phi3(f: GgufFacts) -> Config:
    found = common(f, "phi3") | {"sliding_window": f.whole("attention.sliding_window", 0) or None}
    original = f.whole("rope.scaling.original_context_length", found["max_position_embeddings"], least=1)
    return found | {"original_max_position_embeddings": original}


def _olmo2(f: GgufFacts) -> Config:
    """With a window it is an OLMo 3, whose scaling of positions is that of the layers that see all."""
    window = f.whole("attention.sliding_window", 0)
    found = common(f, "olmo3" if window else "olmo2") | {"attention_bias": biased(f, "attn_q")}
    if not window:
        return found
    slides = pattern(f, found["num_hidden_layers"], 4)
    scaling = found.pop("rope_scaling", None) or {"rope_type": "default"}
    return found | {
        "layer_types": ["sliding_attention" if on else "full_attention" for on in slides],
        "sliding_window": window,
        "rope_parameters": {
            "full_attention": {"rope_theta": found["rope_theta"], **scaling},
            "sliding_attention": {"rope_theta": found.pop("rope_theta"), "rope_type": "default"},
        },
    }


def _olmoe(f: GgufFacts) -> Config:
    experts = {"num_experts": expert_count(f), "num_experts_per_tok": f.whole("expert_used_count")}
    return common(f, "olmoe") | experts | {"attention_bias": biased(f, "attn_q"), "norm_topk_prob": False}


def _smollm3(f: GgufFacts) -> Config:
    return common(f, "smollm3") | {"attention_bias": biased(f, "attn_q"), "no_rope_layer_interval": 4}


def _multipliers(f: GgufFacts, found: Config) -> Config:
    """Granite's factors, each where llama.cpp has none given as well."""
    usual = found["head_dim"] ** -0.5
    return {
        "embedding_multiplier": f.number("embedding_scale", 0.0) or 1.0,
        "attention_multiplier": f.number("attention.scale", 0.0) or usual,
        "residual_multiplier": f.number("residual_scale", 0.0) or 1.0,
        "logits_scaling": f.number("logit_scale", 0.0) or 1.0,
        "attention_bias": biased(f, "attn_q"),
    }


def _granite(f: GgufFacts) -> Config:
    """Granite without Mamba: the dense ones are hybrids all of whose layers attend, and which have one MLP."""
    experts, shared = expert_count(f), f.whole("expert_shared_feed_forward_length", 0)
    found = common(f, "granitemoe" if experts and not shared else "granitemoehybrid")
    found |= _multipliers(f, found) | {
        "num_local_experts": experts,
        "num_experts_per_tok": f.whole("expert_used_count", 0),
    }
    if found["model_type"] == "granitemoe":
        return found
    kinds = ["full_attention"] * found["num_hidden_layers"]
    wide = shared if experts else rows(f, "blk.0.ffn_gate.weight")
    return found | {"layer_types": kinds, "position_embedding_type": "rope", "shared_intermediate_size": wide}


def _granite_hybrid(f: GgufFacts) -> Config:
    """Layers without keys and values are Mamba-2. Bamba is the one that rotates a half of its heads."""
    found = common(f, "granitemoehybrid") | _mamba(f)
    attends = [bool(n) for n in f.each("attention.head_count_kv", found["num_hidden_layers"])]
    if found.get("partial_rotary_factor") == 0.5:
        indices = [i for i, on in enumerate(attends) if on]
        biases = {"attention_bias": biased(f, "attn_q"), "mlp_bias": biased(f, "ffn_gate")}
        return found | biases | {"model_type": "bamba", "attn_layer_indices": indices}
    experts = expert_count(f)
    shared = f.whole("expert_shared_feed_forward_length", 0) if experts else rows(f, "blk.0.ffn_gate.weight")
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
        "mamba_proj_bias": biased(f, "ssm_in"),
    }


def _lfm2_moe(f: GgufFacts) -> Config:
    found = {key: value for key, value in _lfm2(f).items() if key != "block_auto_adjust_ff_dim"}
    return found | {
        "model_type": "lfm2_moe",
        "num_dense_layers": f.whole("leading_dense_block_count", 0),
        **of_experts(f),
        "routed_scaling_factor": f.number("expert_weights_scale", 0.0) or 1.0,
        "norm_topk_prob": f.flag("expert_weights_norm", True),
        "use_expert_bias": any(name.endswith(".exp_probs_b.bias") for name in f.file.tensors),
    }


def _lfm2(f: GgufFacts) -> Config:
    """Layers without keys and values convolve. The width of the MLP in the file is the final one."""
    found = common(f, "lfm2")
    attends = f.each("attention.head_count_kv", found["num_hidden_layers"])
    return {key: value for key, value in found.items() if key != "rms_norm_eps"} | {
        "norm_eps": found["rms_norm_eps"],
        "layer_types": ["full_attention" if n else "conv" for n in attends],
        "conv_L_cache": f.whole("shortconv.l_cache", least=1),
        "conv_bias": biased(f, "shortconv.in_proj"),
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
    "lfm2moe": _lfm2_moe,
    "dream": lambda f: common(f, "Dream"),
    "llada": lambda f: llada(f, common(f, "llada"), biased(f, "attn_q")),
    "llada-moe": lambda f: llada_moe(f, common(f, "llada_moe"), expert_count(f), biased(f, "attn_q")),
    **DENSE,
    **MIXTURES,
    **HYBRIDS,
    **LATENT,
    **GEMMA4,
    **GEMMA3N,
    **ENCODERS,
}
# llama.cpp turns neighbouring channels together in these, as the checkpoint's own code does.
UNORDERED = ("command-r", "cohere2", "glm4", "ernie4_5", "ernie4_5-moe")
# In these too, where the checkpoint's code does not, so that their q and k are stored in its order.
PAIRED = (
    *("llama", "smollm3", "granite", "granitemoe", "granitehybrid", "llada", "arcee", "olmo", "minicpm", "mistral3"),
    *UNORDERED,
)
