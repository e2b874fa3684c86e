"""Gemma 4 in GGUF files: its config, and where its tensors are, which are as in the checkpoint but for their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from edgedec.export.gguf.common import MAX_HEAD, Config, headless, of_experts, pattern, some
from edgedec.export.gguf.metadata import GgufFacts
from edgedec.models import Source
from edgedec.models.gemma4_text import text_weights
from edgedec.spec import ModelSpec

# What stands for a channel that does not turn, by which its angle is divided.
_NEVER = 1e20
OUTER = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "model.embed_tokens_per_layer.weight": "per_layer_token_embd.weight",
    "model.per_layer_model_projection.weight": "per_layer_model_proj.weight",
    "model.per_layer_projection_norm.weight": "per_layer_proj_norm.weight",
}
LAYER = {
    **{f"self_attn.{part}_proj.weight": f"attn_{part}.weight" for part in "qkv"},
    **{f"self_attn.{part}_norm.weight": f"attn_{part}_norm.weight" for part in "qk"},
    **{f"mlp.{part}_proj.weight": f"ffn_{part}.weight" for part in ("gate", "up", "down")},
    "self_attn.o_proj.weight": "attn_output.weight",
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
    "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
    "pre_feedforward_layernorm_2.weight": "pre_ffw_norm_2.weight",
    **{f"post_feedforward_layernorm_{i}.weight": f"post_ffw_norm_{i}.weight" for i in (1, 2)},
    "layer_scalar": "layer_output_scale.weight",
    "router.proj.weight": "ffn_gate_inp.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight",
    "per_layer_input_gate.weight": "inp_gate.weight",
    "per_layer_projection.weight": "proj.weight",
    "post_per_layer_input_norm.weight": "post_norm.weight",
}


def gemma4(f: GgufFacts) -> Config:
    n, has = f.whole("block_count", least=1, most=len(f.file.tensors)), f.file.tensors
    inner = f.each("feed_forward_length", n)
    found = headless(f, "gemma4_text", inner=inner[0])
    slides = pattern(f, n, 6)
    full = next((i for i, on in enumerate(slides) if not on), n - 1)
    alike = f"blk.{full}.attn_v.weight" not in has
    wide, local = (f.whole(f"attention.key_length{of}", least=1, most=MAX_HEAD) for of in ("", "_swa"))
    turned = f.whole("rope.dimension_count_swa", local)
    if turned != local:
        raise f.fail(f.name("rope.dimension_count_swa"), f"is {turned}; supported is {local}, the whole of a head")
    kv = dict(zip(slides, f.each("attention.head_count_kv", n), strict=True))
    if len(set(kv.values())) > 1 and not alike:
        raise f.fail(f.name("attention.head_count_kv"), "differs between layers that have values apart from keys")
    own = n - f.whole("attention.shared_kv_layers", 0, most=n)
    doubled = any(inner[own:]) and inner[own:] == [2 * inner[0]] * (n - own)
    if inner != [inner[0]] * own + [inner[0] * (1 + doubled)] * (n - own):
        raise f.fail(f.name("feed_forward_length"), f"is {inner}: supported is one, doubled where slots are shared")
    experts = of_experts(f) if f.whole("expert_count", 0) else {}
    return found | {
        "use_double_wide_mlp": doubled,
        "num_attention_heads": f.whole("attention.head_count", least=1),
        "num_key_value_heads": kv.get(True, kv.get(False)),
        "num_global_key_value_heads": kv.get(False) if alike else None,
        "attention_k_eq_v": alike,
        "head_dim": local,
        "global_head_dim": wide,
        "layer_types": ["sliding_attention" if on else "full_attention" for on in slides],
        "sliding_window": f.whole("attention.sliding_window", least=1),
        "num_kv_shared_layers": n - own,
        "hidden_size_per_layer_input": f.whole("embedding_length_per_layer_input", 0),
        "final_logit_softcapping": f.number("final_logit_softcapping", 0.0) or None,
        "attention_bias": some(f, "attn_q.bias"),
        "rope_parameters": _ropes(f, wide),
        **_experts(experts),
    }


def _ropes(f: GgufFacts, wide: int) -> Config:
    turned = {"partial_rotary_factor": _share(f, wide), "rope_theta": f.number("rope.freq_base", 1e6)}
    return {
        "full_attention": {"rope_type": "proportional", **turned},
        "sliding_attention": {"rope_type": "default", "rope_theta": f.number("rope.freq_base_swa", 1e4)},
    }


def _experts(found: Config) -> Config:
    names = {"num_experts_per_tok": "top_k_experts"}
    return {"enable_moe_block": bool(found)} | {names.get(key, key): value for key, value in found.items()}


def _share(f: GgufFacts, dim: int) -> float:
    """Of heads of full layers, the share that turns: the other pairs are divided by a number without end."""
    name = "rope_freqs.weight"
    if name not in f.file.tensors:
        return 1.0
    by = f.file.tensors[name].values(name, 0, (dim // 2,)) if f.file.tensors[name].shape == (dim // 2,) else np.zeros(1)
    turned = int((by == 1).sum())
    if not turned or (by[:turned] != 1).any() or (by[turned:] < _NEVER).any():
        raise f.fail(name, f"must be ones, then numbers beyond {_NEVER:g}, {dim // 2} together")
    return 2 * turned / dim


def gemma4_weights(spec: ModelSpec, config: Config) -> dict[str, Source]:
    return {
        name: tuple(replace(part, name=_named(part.name)) for part in source)
        for name, source in text_weights(spec).items()
    }


def _named(theirs: str) -> str:
    if theirs in OUTER:
        return OUTER[theirs]
    _, _, layer, rest = theirs.split(".", 3)
    return f"blk.{layer}.{LAYER.get(rest, f'{rest} (no name in GGUF)')}"


def ignored(spec: ModelSpec) -> tuple[str, ...]:
    """Keys and values of layers that read those of others: files have them, and nothing reads them."""
    layers = "|".join(str(spec.layer_of(b)) for b, block in enumerate(spec.blocks) if block.kind == "shared_attention")
    return (rf"blk\.({layers})\.attn_(k|v|k_norm)\.(weight|bias)",) if layers else ()


GEMMA4: Mapping[str, Callable[[GgufFacts], Config]] = {"gemma4": gemma4}
