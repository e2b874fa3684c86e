"""Where weights are in a checkpoint: the usual names, and a spec's tensors by them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from edgedec.models import Part, Source
from edgedec.spec import Block, ModelSpec, Moe

Paths = dict[str, tuple[str | Part, ...]]
Names = Mapping[str, Paths]
"""By kind of block, its tensors and where they are within a layer of the checkpoint. A * in a name is the number of an
expert: the parts of expert 0 come first, then those of expert 1, and so on."""

OUTER = {
    **{"embed": "model.embed_tokens.weight", "final_norm": "model.norm.weight", "head": "lm_head.weight"},
    "dense.0": "score.weight",  # of a decoder that scores texts
}
ATTENTION: Paths = {
    "norm": ("input_layernorm.weight",),
    "qkv": ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
    "qkv_bias": ("self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"),
    "q_norm": ("self_attn.q_norm.weight",),
    "k_norm": ("self_attn.k_norm.weight",),
    "o": ("self_attn.o_proj.weight",),
    "o_bias": ("self_attn.o_proj.bias",),
}
MLP: Paths = {
    "norm": ("post_attention_layernorm.weight",),
    "gate_up": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "gate_up_bias": ("mlp.gate_proj.bias", "mlp.up_proj.bias"),
    "down": ("mlp.down_proj.weight",),
    "down_bias": ("mlp.down_proj.bias",),
}
EXPERTS: Paths = {
    "norm": ("post_attention_layernorm.weight",),
    "router": ("mlp.gate.weight",),
    "gate_up": ("mlp.experts.*.gate_proj.weight", "mlp.experts.*.up_proj.weight"),
    "down": ("mlp.experts.*.down_proj.weight",),
}
LLAMA: Names = {"attention": ATTENTION, "mlp": MLP, "moe": EXPERTS}


def named(
    spec: ModelSpec,
    names: Names = LLAMA,
    *,
    outer: Mapping[str, str] = OUTER,
    prefix: str = "",
    layers: str = "model.layers.",
    norm_add: float = 0.0,
    times: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, Source]:
    """Every tensor of `spec` by `outer` and, within a layer, by `names`. layers: what the name of a layer begins with;
    times: factors by the name of a tensor.

    "blocks.7.gate_up" -> model.layers.3.mlp.gate_proj.weight over model.layers.3.mlp.up_proj.weight
    """

    def changed(parts: Source, tensor: str, where: str) -> Source:
        add, factor = norm_add if tensor.endswith("norm") else 0.0, times.get(tensor, 1.0)
        return tuple(
            replace(part, name=where + part.name, add=(part.add + add) * factor, times=part.times * factor)
            for part in parts
        )

    found = {name: changed((Part(outer[name]),), name, prefix) for name in spec.tensors() if name in outer}
    for b, block in enumerate(spec.blocks):
        where = f"{prefix}{layers}{spec.layer_of(b)}."
        for tensor in block.tensors(spec.hidden_size):
            found[f"blocks.{b}.{tensor}"] = changed(_parts(block, names[block.kind][tensor]), tensor, where)
    return found


def _parts(block: Block, paths: tuple[str | Part, ...]) -> Source:
    """The parts of a tensor of a block; those of an expert once for each expert."""
    parts = tuple(Part(path) if isinstance(path, str) else path for path in paths)
    if not isinstance(block, Moe) or not any("*" in part.name for part in parts):
        return parts
    return tuple(replace(part, name=part.name.replace("*", str(e))) for e in range(block.n_experts) for part in parts)
