"""Where a bundle's tensors are in a GGUF file: ggml's names, the same for all architectures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from edgedec.models import Part, Source
from edgedec.spec import Block, ModelSpec, Moe

OUTER = {"embed": "token_embd.weight", "final_norm": "output_norm.weight", "head": "output.weight"}
# What stands for it in files of LFM2.
OTHER_OUTER = {"final_norm": "token_embd_norm.weight"}
IGNORED = (r"rope_freqs\.weight", r"rope_factors_(long|short)\.weight", r"blk\.\d+\.attn_rot_embd")
BLOCKS: dict[str, dict[str, tuple[str, ...]]] = {
    "attention": {
        "norm": ("attn_norm.weight",),
        "post_norm": ("post_attention_norm.weight",),
        "qkv": ("attn_q.weight", "attn_k.weight", "attn_v.weight"),
        "qkv_bias": ("attn_q.bias", "attn_k.bias", "attn_v.bias"),
        "q_norm": ("attn_q_norm.weight",),
        "k_norm": ("attn_k_norm.weight",),
        "o": ("attn_output.weight",),
        "o_bias": ("attn_output.bias",),
    },
    "mlp": {
        "norm": ("ffn_norm.weight",),
        "post_norm": ("post_ffw_norm.weight",),
        "gate_up": ("ffn_gate.weight", "ffn_up.weight"),
        "gate_up_bias": ("ffn_gate.bias", "ffn_up.bias"),
        "down": ("ffn_down.weight",),
        "down_bias": ("ffn_down.bias",),
    },
    "moe": {
        "norm": ("ffn_norm.weight",),
        "router": ("ffn_gate_inp.weight",),
        "gate_up": ("ffn_gate_exps.weight", "ffn_up_exps.weight"),
        "down": ("ffn_down_exps.weight",),
        "shared_gate_up": ("ffn_gate_shexp.weight", "ffn_up_shexp.weight"),
        "shared_down": ("ffn_down_shexp.weight",),
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
FLAT = ("ssm_a", "ssm_d", "ssm_norm.weight")


def named(spec: ModelSpec, tensors: Iterable[str], times: Mapping[str, float]) -> dict[str, Source]:
    """Every tensor of `spec` with the tensors of the file it is stacked from. times: factors by the name of a tensor.

    "blocks.7.gate_up" -> blk.3.ffn_gate.weight over blk.3.ffn_up.weight
    """
    there = frozenset(tensors)
    outer = OUTER | {name: path for name, path in OTHER_OUTER.items() if OUTER[name] not in there and path in there}
    found: dict[str, Source] = {name: (Part(outer[name]),) for name in spec.tensors() if name in outer}
    for b, block in enumerate(spec.blocks):
        for tensor in block.tensors(spec.hidden_size):
            paths = [f"blk.{spec.layer_of(b)}.{path}" for path in _paths(block, tensor, spec.layer_of(b), there)]
            found[f"blocks.{b}.{tensor}"] = _parts(block, tensor, paths)
    return {name: _scaled(source, times.get(name.rpartition(".")[2], 1.0)) for name, source in found.items()}


def _paths(block: Block, tensor: str, layer: int, there: frozenset[str]) -> tuple[str, ...]:
    """The names of a tensor's parts: the usual ones, or that of the one which has them all."""
    if isinstance(block, Moe) and f"blk.{layer}.ffn_gate.0.weight" in there and tensor in APART:
        return tuple(path.format(e) for e in range(block.n_experts) for path in APART[tensor])
    usual = BLOCKS[block.kind].get(tensor, (f"{tensor} (no name in GGUF)",))
    if f"blk.{layer}.{usual[0]}" in there:
        return usual
    fused = ("ffn_up.weight",) if block.kind == "mlp" and tensor == "gate_up" else FUSED.get(tensor, usual)
    return fused if f"blk.{layer}.{fused[0]}" in there else usual


def _parts(block: Block, tensor: str, paths: list[str]) -> Source:
    """The parts of a tensor; of stacked experts gate and up of the first, then of the second, and so on."""
    if isinstance(block, Moe) and tensor == "gate_up" and len(paths) == 2 and "_exps" in paths[0]:
        rows = [(e * block.inner_size, (e + 1) * block.inner_size) for e in range(block.n_experts)]
        return tuple(Part(path, rows=span, flat=True) for span in rows for path in paths)
    return tuple(Part(path, flat=isinstance(block, Moe)) for path in paths)


def _scaled(source: Source, factor: float) -> Source:
    return tuple(replace(part, times=part.times * factor) for part in source)
