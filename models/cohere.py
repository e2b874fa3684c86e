"""Command R and Aya: attention and a gated feed-forward side by side after one LayerNorm without a bias; a rope that
turns neighbours; logits times a factor, which is in the last norm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgedec.models import ArchitectureFacts, Part, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, heads
from edgedec.models._dense import in_pairs, layer_norm, rotary
from edgedec.models._names import ATTENTION, MLP, OUTER, named
from edgedec.spec import Attention, Mlp, ModelSpec

FACTS = ArchitectureFacts(IGNORED)


def logit_scale(r: ConfigReader) -> float:
    return r.number("logit_scale", 0.0625)


def feed_forward(r: ConfigReader) -> Mlp:
    return Mlp(r.whole("intermediate_size"), activation=activation(r), norm="layer")


def attended(r: ConfigReader) -> Attention:
    """Its attention without norms of heads."""
    bias = r.flag("attention_bias", False)
    return Attention(**heads(r), qkv_bias=bias, o_bias=bias, norm="layer", branch=True)


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    logit_scale(r)  # `weights` needs it
    normed, block = r.flag("use_qk_norm", False), attended(r)
    if normed:
        block = replace(block, qk_norm="heads", qk_norm_kind="layer")
    layer, dim = (block, feed_forward(r)), block.head_dim
    facts: dict[str, Any] = {"eps": 1e-5, "eps_key": "layer_norm_eps", "theta": 500000.0, "final_norm": "layer"}
    return rotary(r, context, layer, dim, tied=True, **facts)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    block, norm = next(iter(spec.attention.values())), layer_norm("norm", "input_layernorm", bias=False)
    turned = 2 * len(spec.ropes[0].inv_freq)
    attention = in_pairs(ATTENTION, block.head_dim, turned) | norm
    for tensor in ("q_norm", "k_norm"):  # stored as a row for each head
        name, pairs = f"self_attn.{tensor}.weight", (block.head_dim, 0, turned)
        attention |= {tensor: (Part(name, halves=pairs, vector=True),)}
        attention |= {f"{tensor}_bias": (Part(name, vector=True, times=0.0),)}
    names = {"attention": attention, "mlp": MLP | norm}
    found = named(spec, names, outer=OUTER, times={"final_norm": logit_scale(ConfigReader(config))})
    return found | {"final_norm_bias": (Part(OUTER["final_norm"], times=0.0),)}
