"""Where a bundle's tensors are in a GGUF file: ggml's names, the same for all architectures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from edgedec.export.gguf.reordered import reordered
from edgedec.models import Part, Source
from edgedec.spec import Block, ModelSpec, Moe

OUTER = {
    **{"embed": "token_embd.weight", "final_norm": "output_norm.weight", "head": "output.weight"},
    **{"final_norm_bias": "output_norm.bias", "head_bias": "output.bias", "positions": "position_embd.weight"},
    **{"entry_norm": "token_embd_norm.weight", "entry_norm_bias": "token_embd_norm.bias"},
    "types": "token_types.weight",
}
# What stands for it in files of NeoBERT and of LFM2.
OTHER_OUTER = {"final_norm": ("enc.output_norm.weight", "token_embd_norm.weight")}
# Files of RWKV-7 have values to mix in for the first layer too, which makes them.
IGNORED = (
    r"blk\.0\.time_mix_v[012]\.weight",
    r"rope_freqs\.weight",
    r"rope_factors_(long|short)\.weight",
    r"blk\.\d+\.attn_rot_embd",
)
BLOCKS: dict[str, dict[str, tuple[str, ...]]] = {
    "attention": {
        "norm": ("attn_norm.weight",),
        "post_norm": ("post_attention_norm.weight",),
        "after_norm": ("attn_output_norm.weight",),
        "again_norm": ("attn_norm_2.weight",),
        "inner_norm": ("attn_sub_norm.weight",),
        "qkv": ("attn_q.weight", "attn_k.weight", "attn_v.weight"),
        "qkv_bias": ("attn_q.bias", "attn_k.bias", "attn_v.bias"),
        "q_norm": ("attn_q_norm.weight",),
        "k_norm": ("attn_k_norm.weight",),
        "sink_logit": ("attn_sinks.weight",),
        "o": ("attn_output.weight",),
        "o_bias": ("attn_output.bias",),
    },
    "mlp": {
        "norm": ("ffn_norm.weight",),
        "post_norm": ("post_ffw_norm.weight",),
        "after_norm": ("layer_output_norm.weight",),
        "inner_norm": ("ffn_sub_norm.weight",),
        "up": ("ffn_up.weight",),
        "up_bias": ("ffn_up.bias",),
        "gate_up": ("ffn_gate.weight", "ffn_up.weight"),
        "gate_up_bias": ("ffn_gate.bias", "ffn_up.bias"),
        "down": ("ffn_down.weight",),
        "down_bias": ("ffn_down.bias",),
    },
    "moe": {
        "norm": ("ffn_norm.weight",),
        "post_norm": ("post_ffw_norm.weight",),
        "after_norm": ("layer_output_norm.weight",),
        "router": ("ffn_gate_inp.weight",),
        "router_bias": ("exp_probs_b.bias",),
        "router_logit_bias": ("ffn_gate_inp.bias",),
        "gate_up_bias": ("ffn_gate_exps.bias", "ffn_up_exps.bias"),
        "down_bias": ("ffn_down_exps.bias",),
        "gate_up": ("ffn_gate_exps.weight", "ffn_up_exps.weight"),
        "down": ("ffn_down_exps.weight",),
        "shared_gate_up": ("ffn_gate_shexp.weight", "ffn_up_shexp.weight"),
        "shared_down": ("ffn_down_shexp.weight",),
        "shared_gate": ("ffn_gate_inp_shexp.weight",),
        "up": ("ffn_up_exps.weight",),
        "shared_up": ("ffn_up_shexp.weight",),
    },
    "conv": {
        "norm": ("attn_norm.weight",),
        "in_proj": ("shortconv.in_proj.weight",),
        "in_proj_bias": ("shortconv.in_proj.bias",),
        "conv": ("shortconv.conv.weight",),
        "conv_bias": ("shortconv.conv.bias",),
        "out_proj": ("shortconv.out_proj.weight",),
        "out_proj_bias": ("shortconv.out_proj.bias",),
    },
    "ssm": {
        "norm": ("attn_norm.weight",),
        "in_proj": ("ssm_in.weight",),
        "in_proj_bias": ("ssm_in.bias",),
        "conv": ("ssm_conv1d.weight",),
        "conv_bias": ("ssm_conv1d.bias",),
        "dt_bias": ("ssm_dt.bias",),
        "a": ("ssm_a",),
        "d": ("ssm_d",),
        "gate_norm": ("ssm_norm.weight",),
        "out_proj": ("ssm_out.weight",),
        "out_proj_bias": ("ssm_out.bias",),
    },
}
BLOCKS["delta"] = {
    **{name: BLOCKS["ssm"][name] for name in ("norm", "dt_bias", "a", "gate_norm", "out_proj")},
    "gate_up": ("ssm_g_b.weight",),
    "decay_up": ("ssm_f_b.weight",),
}
BLOCKS["latent"] = {
    "norm": ("attn_norm.weight",),
    "q_a": ("attn_q_a.weight",),
    "q_a_norm": ("attn_q_a_norm.weight",),
    "kv_norm": ("attn_kv_a_norm.weight",),
    "o": ("attn_output.weight",),
}
BLOCKS["s6"] = {
    **{name: BLOCKS["ssm"][name] for name in BLOCKS["ssm"] if name != "gate_norm"},
    "x_proj": ("ssm_x.weight",),
    "dt_proj": ("ssm_dt.weight",),
    "dt_norm": ("ssm_dt_norm.weight",),
    "b_norm": ("ssm_b_norm.weight",),
    "c_norm": ("ssm_c_norm.weight",),
}
_LOW = {"decay": "w", "rate": "a", "gate": "g", "value": "v"}
BLOCKS["rwkv7"] = {
    "norm": ("attn_norm.weight",),
    **dict(zip("rkvo", ((f"time_mix_{n}.weight",) for n in ("receptance", "key", "value", "output")), strict=True)),
    **{f"{name}_down": (f"time_mix_{own}1.weight",) for name, own in _LOW.items()},
    **{f"{name}_up": (f"time_mix_{own}2.weight",) for name, own in _LOW.items()},
    **{f"{name}_bias": (f"time_mix_{own}0.weight",) for name, own in _LOW.items()},
    "key_scale": ("time_mix_k_k.weight",),
    "key_rate": ("time_mix_k_a.weight",),
    "bonus": ("time_mix_r_k.weight",),
    "out_norm": ("time_mix_ln.weight",),
}
BLOCKS["channel_mix"] = {
    "norm": ("attn_norm_2.weight",),
    "mix": ("channel_mix_lerp_k.weight",),
    "up": ("channel_mix_key.weight",),
    "down": ("channel_mix_value.weight",),
}
# The norms that a block may begin with, the first that a layer has. Of two that Falcon has side by side, the second in
# its name is that of attention.
FIRST_NORMS = {"attention": ("attn_norm_2", "attn_norm"), "mlp": ("ffn_norm",), "moe": ("ffn_norm",)}
# Some architectures have the feed-forward's under another name.
OWN_NORMS = {
    "seed_oss": {"mlp": ("post_attention_norm",)},
    "glm4moe": dict.fromkeys(("mlp", "moe"), ("post_attention_norm",)),
    "gpt-oss": {"moe": ("post_attention_norm",)},
    **dict.fromkeys(("qwen3next", "qwen35", "qwen35moe"), dict.fromkeys(("mlp", "moe"), ("post_attention_norm",))),
    **dict.fromkeys(("nemotron_h", "nemotron_h_moe"), dict.fromkeys(("mlp", "moe"), ("attn_norm",))),
}
# Matrices as wide as LayerNorms without weights are (OLMo's).
WIDTHS = {"attention": "attn_q.weight", "mlp": "ffn_gate.weight"}
# Some files have these in one.
FUSED = {
    "qkv": ("attn_qkv.weight",),
    "qkv_bias": ("attn_qkv.bias",),
    "gate_up": ("ffn_gate_up_exps.weight",),
    "shared_gate_up": ("ffn_up_shexp.weight",),
}
# Of mixtures of experts before llama.cpp stacked them (April 2024): a tensor for each expert.
APART = {"gate_up": ("ffn_gate.{}.weight", "ffn_up.{}.weight"), "down": ("ffn_down.{}.weight",)}
# Vectors that ggml stores with an axis more.
FLAT = ("ssm_a", "ssm_d", "ssm_norm.weight", "attn_q_norm.weight", "attn_k_norm.weight", "_exps.bias")


def named(
    spec: ModelSpec, tensors: Iterable[str], times: Mapping[str, float], architecture: str = ""
) -> dict[str, Source]:
    """Every tensor of `spec` with the tensors of the file it is stacked from. times: factors by the name of a tensor.

    "blocks.7.gate_up" -> blk.3.ffn_gate.weight over blk.3.ffn_up.weight
    """
    there = frozenset(tensors)
    others = {name: path for name, paths in OTHER_OUTER.items() for path in reversed(paths) if path in there}
    outer = OUTER | {name: path for name, path in others.items() if OUTER[name] not in there}
    found: dict[str, Source] = {
        name: _outer(spec, name, outer, there, architecture) for name in spec.tensors() if name in outer
    }
    inner = [name.split(".", 2)[1:] for name in there if name.count(".") > 1 and name.startswith("blk.")]
    of_layer = [frozenset(name for number, name in inner if number == str(i)) for i in range(spec.n_layers)]
    for b, block in enumerate(spec.blocks):
        layer = spec.layer_of(b)
        own = of_layer[layer]
        beside = b > 0 and spec.layer_of(b - 1) == layer and spec.blocks[b - 1].branch
        for tensor in block.tensors(spec.hidden_size):
            source = _norm(block, tensor, own, architecture, beside) if "norm" in tensor else None
            source = source or reordered(block, tensor, own, architecture)
            source = source or _parts(block, tensor, list(_paths(block, tensor, own)))
            found[f"blocks.{b}.{tensor}"] = tuple(replace(part, name=f"blk.{layer}.{part.name}") for part in source)
    return {name: _scaled(source, times.get(name.rpartition(".")[2], 1.0)) for name, source in found.items()}


def _outer(spec: ModelSpec, name: str, outer: Mapping[str, str], there: frozenset[str], architecture: str) -> Source:
    """A tensor outside the layers. A norm's bias that a file lacks is zero; OLMo has norms of ones."""
    weight = outer[name.removesuffix("_bias")] if name.endswith("norm_bias") else outer[name]
    if name == "positions":
        return (Part(weight, (0, spec.context_length)),)
    if architecture == "olmo" and name.startswith("final_norm") and weight not in there:
        return (Part(outer["embed"], ones=True, times=0.0 if name.endswith("bias") else 1.0),)
    if name.endswith("norm_bias") and outer[name] not in there:
        return (Part(weight, times=0.0),)
    return (Part(outer[name]),)


def _norm(block: Block, tensor: str, own: frozenset[str], architecture: str, beside: bool) -> Source | None:
    """A norm's weight or bias; None where its usual name will do. own: names in the layer; beside: the block before
    this one reads what it reads, and they may share a norm."""
    kind, bias = block.kind, tensor.endswith("_bias")
    if tensor.removesuffix("_bias") == "norm" and kind in FIRST_NORMS:
        names = (
            *FIRST_NORMS[kind],
            *OWN_NORMS.get(architecture, {}).get(kind, ()),
            *(("attn_norm",) if beside else ()),
        )
        stem = next((name for name in names if f"{name}.weight" in own), names[0])
        if architecture == "olmo" and f"{stem}.weight" not in own:
            return (Part(WIDTHS[kind], ones=True, times=0.0 if bias else 1.0),)
    elif bias:
        stem = BLOCKS[kind][tensor.removesuffix("_bias")][0].removesuffix(".weight")
    else:
        return None
    if bias and f"{stem}.bias" not in own:
        return (Part(f"{stem}.weight", times=0.0),)
    return (Part(f"{stem}.bias" if bias else f"{stem}.weight"),)


def _paths(block: Block, tensor: str, own: frozenset[str]) -> tuple[str, ...]:
    """The names of a tensor's parts in its layer: the usual ones, or that of the one which has them all."""
    if isinstance(block, Moe) and "ffn_gate.0.weight" in own and tensor in APART:
        return tuple(path.format(e) for e in range(block.n_experts) for path in APART[tensor])
    usual = BLOCKS[block.kind].get(tensor, (f"{tensor} (no name in GGUF)",)) if block.kind in BLOCKS else (tensor,)
    if usual[0] in own:
        return usual
    fused = ("ffn_up.weight",) if block.kind == "mlp" and tensor == "gate_up" else FUSED.get(tensor, usual)
    return fused if fused[0] in own else usual


def _parts(block: Block, tensor: str, paths: list[str]) -> Source:
    """The parts of a tensor; of stacked experts gate and up of the first, then of the second, and so on."""
    if isinstance(block, Moe) and tensor.startswith("gate_up") and len(paths) == 2 and "_exps" in paths[0]:
        rows = [(e * block.inner_size, (e + 1) * block.inner_size) for e in range(block.n_experts)]
        return tuple(Part(path, rows=span, flat=tensor == "gate_up") for span in rows for path in paths)
    return tuple(Part(path, flat=isinstance(block, Moe) and not tensor.endswith("bias")) for path in paths)


def _scaled(source: Source, factor: float) -> Source:
    return tuple(replace(part, times=part.times * factor) for part in source)
