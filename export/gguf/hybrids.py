"""The configs of decoders in GGUF files that mix attention with other blocks: state spaces, the delta rule."""

from __future__ import annotations

from collections.abc import Callable

from edgedec.export.gguf.common import (
    Config,
    biased,
    common,
    expert_count,
    nextn_layers,
    of_experts,
    rows,
    shared_width,
    some,
    state_heads,
    turned_share,
    without,
)
from edgedec.export.gguf.metadata import GgufFacts
from edgedec.export.gguf.mixtures import deepseek


def _attending(f: GgufFacts, n: int) -> list[bool]:
    """The layers with keys and values."""
    return [bool(heads) for heads in f.each("attention.head_count_kv", n)]


def _every(f: GgufFacts, on: list[bool], what: str) -> Config:
    """Which layers are of a kind, as one of every so many: all that a config can say."""
    places = [i for i, one in enumerate(on) if one]
    first = places[0] if places else len(on)
    period = places[1] - first if len(places) > 1 else max(len(on), first + 1)
    if [i % period == first for i in range(len(on))] != on:
        raise f.fail(f"{what}_period", f"would not give layers {places}: they are not one of every so many")
    return {f"{what}_period": period, f"{what}_offset": first}


def _jamba(f: GgufFacts) -> Config:
    found, inner = common(f, "jamba"), f.whole("ssm.inner_size", least=1)
    n, hidden, experts = found["num_hidden_layers"], found["hidden_size"], expert_count(f)
    if inner % hidden:
        raise f.fail(f.name("ssm.inner_size"), f"{inner} is not whole times {hidden}")
    routes = [f"blk.{i}.ffn_gate_inp.weight" in f.file.tensors for i in range(n)]
    found |= _every(f, _attending(f, n), "attn_layer") | (_every(f, routes, "expert_layer") if experts else {})
    return without(found, "rope_theta", "rope_scaling") | {
        "num_experts": experts or 1,
        "num_experts_per_tok": f.whole("expert_used_count", 1),
        "mamba_expand": inner // hidden,
        "mamba_d_state": f.whole("ssm.state_size", least=1),
        "mamba_d_conv": f.whole("ssm.conv_kernel", least=1),
        "mamba_dt_rank": f.whole("ssm.time_step_rank", least=1),
        "mamba_proj_bias": biased(f, "ssm_in"),
    }


def _delta(f: GgufFacts, model_type: str) -> Config:
    """Of layers one in so many attends, the others follow the delta rule; the last ones may only draft."""
    found, (inner, heads) = common(f, model_type), state_heads(f)
    return found | {
        "num_hidden_layers": found["num_hidden_layers"] - nextn_layers(f),
        "full_attention_interval": f.whole("full_attention_interval", 4, least=1),
        "linear_num_value_heads": heads,
        "linear_num_key_heads": f.whole("ssm.group_count", least=1),
        "linear_value_head_dim": inner // heads,
        "linear_key_head_dim": f.whole("ssm.state_size", least=1),
        "linear_conv_kernel_dim": f.whole("ssm.conv_kernel", least=1),
        "partial_rotary_factor": turned_share(f),
        "attention_bias": biased(f, "attn_q"),
    }


def _shared_expert(f: GgufFacts) -> Config:
    return of_experts(f) | {"shared_expert_intermediate_size": rows(f, "blk.0.ffn_up_shexp.weight")}


def _qwen3_next(f: GgufFacts) -> Config:
    return _delta(f, "qwen3_next") | _shared_expert(f) | {"norm_topk_prob": True}


def _qwen3_5(f: GgufFacts) -> Config:
    return _delta(f, "qwen3_5_text")


def _qwen3_5_moe(f: GgufFacts) -> Config:
    return _delta(f, "qwen3_5_moe_text") | _shared_expert(f)


def _falcon_h1(f: GgufFacts) -> Config:
    """The file's tensors have the multipliers in them."""
    found, normed, (inner, heads) = common(f, "falcon_h1"), some(f, "ssm_norm.weight"), state_heads(f)
    return found | {
        "mamba_d_ssm": inner,
        "mamba_n_heads": heads,
        "mamba_d_head": inner // heads,
        "mamba_d_state": f.whole("ssm.state_size", least=1),
        "mamba_n_groups": f.whole("ssm.group_count", least=1),
        "mamba_d_conv": f.whole("ssm.conv_kernel", least=1),
        "mamba_rms_norm": normed,
        "mamba_norm_before_gate": False,
        **dict.fromkeys(("mamba_proj_bias", "projectors_bias"), biased(f, "ssm_in")),
        "attention_bias": biased(f, "attn_q"),
        "mlp_bias": biased(f, "ffn_gate"),
    }


def _nemotron_h(f: GgufFacts) -> Config:
    """A layer is one block: it attends if it has keys and values, is a feed-forward or experts if it has such a width,
    and Mamba-2 otherwise."""
    found, (inner, heads) = common(f, "nemotron_h"), state_heads(f)
    n, has = found["num_hidden_layers"] - nextn_layers(f), f.file.tensors
    kinds = {"attn_q": "full_attention", "ffn_gate_inp": "moe", "ffn_up": "mlp", "ssm_in": "linear_attention"}
    types = [next((kind for at, kind in kinds.items() if f"blk.{i}.{at}.weight" in has), "nothing") for i in range(n)]
    return without(found, "rms_norm_eps", "rope_theta", "rope_scaling") | {
        "num_hidden_layers": n,
        "layers_block_type": types,
        "layer_norm_epsilon": found["rms_norm_eps"],
        "mamba_num_heads": heads,
        "mamba_head_dim": inner // heads,
        "ssm_state_size": f.whole("ssm.state_size", least=1),
        "n_groups": f.whole("ssm.group_count", least=1),
        "conv_kernel": f.whole("ssm.conv_kernel", least=1),
        "time_step_min": 1e-30,  # llama.cpp has no limit
        "use_bias": biased(f, "ssm_in"),
        "mlp_bias": biased(f, "ffn_up"),
        **(_nemotron_experts(f) if "moe" in types else {}),
    }


def _nemotron_experts(f: GgufFacts) -> Config:
    if f.whole("moe_latent_size", 0):
        raise f.fail(f.name("moe_latent_size"), "is set: experts of another width than the state are not supported")
    shared = {"n_shared_experts": 1, "moe_shared_expert_intermediate_size": shared_width(f)}
    return without(deepseek(f), "first_k_dense_replace") | shared


HYBRIDS: dict[str, Callable[[GgufFacts], Config]] = {
    "jamba": _jamba,
    "qwen3next": _qwen3_next,
    "qwen35": _qwen3_5,
    "qwen35moe": _qwen3_5_moe,
    "falcon-h1": _falcon_h1,
    "nemotron_h": _nemotron_h,
    "nemotron_h_moe": _nemotron_h,
}
