"""LFM3: LFM2 with norms after blocks too, longer convolutions, windows, and attention whose every head has a gate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader, finish, heads, windows
from edgedec.models._names import Names, named
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.models.lfm2 import CONV, LFM2, LFM2_OUTER, lfm_sizes, short_conv
from edgedec.spec import Attention, Block, Mlp, ModelSpec, Norm, Rope
from edgedec.spec.newer import GATES, newer

# The gate's name as published comes first; transformers writes the other in memory.
FACTS = ArchitectureFacts(IGNORED, renames=(("self_attn.gate_proj", "self_attn.g_proj"),))
_PROJECTIONS = tuple(f"self_attn.{part}_proj.weight" for part in ("q", "k", "v", "gate"))
_POST = {"post_norm": ("post_operator_norm.weight",)}
LFM3: Names = {
    "attention": {
        "norm": ("operator_norm.weight",),
        "qkv": _PROJECTIONS,
        "q_norm": ("self_attn.q_norm.weight",),
        "k_norm": ("self_attn.k_norm.weight",),
        "o": ("self_attn.o_proj.weight",),
        **_POST,
    },
    "conv": CONV | _POST,
    "mlp": LFM2["mlp"] | {"post_norm": ("post_ffn_norm.weight",)},
}
KINDS = ("conv", "full_attention", "sliding_attention")
# The ropes where the config is silent.
_ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
}


def layer_kinds(r: ConfigReader) -> list[str]:
    """The type of each layer."""
    n, types = r.whole("num_hidden_layers"), r.items("layer_types", str)
    if types is None:
        return [KINDS[1] if i % 4 == 2 else KINDS[2] if i % 4 == 0 and i else KINDS[0] for i in range(n)]
    if len(types) != n:
        raise r.fail("layer_types", f"names {len(types)} layers of {n}")
    unknown = sorted(set(types) - set(KINDS))
    if unknown:
        raise r.fail("layer_types", f"{unknown[0]!r} is not supported; known: {', '.join(KINDS)}")
    return types


def proportional(r: ConfigReader, p: ConfigReader, head_dim: int, context: int) -> Rope:
    """Of the pairs of a whole head only the first part turns, each as it would if all did."""
    if p.text("rope_type") != "proportional":
        return rope(r, p, head_dim, context)
    p.value("original_max_position_embeddings")
    turned = int(p.number("partial_rotary_factor", 1.0) * head_dim // 2)
    if not 1 <= turned <= head_dim // 2:
        raise p.fail("partial_rotary_factor", f"turns {turned} of {head_dim // 2} pairs, which cannot be")
    powers = np.arange(0, 2 * turned, 2, dtype=np.float32) / np.float32(head_dim)
    speeds = np.float32(1) / np.float32(p.number("rope_theta")) ** powers / np.float32(p.number("factor", 1.0))
    p.done()
    return Rope((*map(float, speeds), *[0.0] * (head_dim // 2 - turned)))


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader({**config, "rope_parameters": config.get("rope_parameters") or _ROPES})
    tables = [rope_table(r, 1e6, kind, partial=True) for kind in KINDS[1:]]
    length, kinds = context_length(r, tables[0], context), layer_kinds(r)
    if r.flag("attention_bias", False):
        raise r.fail("attention_bias", "is true, which is not supported beside gates without a bias")
    after: Norm = "rms" if r.flag("use_sandwich_norm", True) else "none"
    attention = Attention(**heads(r, kv_heads=4, head_dim=128), qk_norm="head", post_norm=after)
    if r.flag("use_attention_gate", True):
        attention = replace(attention, gate="head")
    spans = windows(r, [kind == KINDS[2] for kind in kinds], r.maybe_whole("sliding_window", 256), length)
    conv = replace(short_conv(r, 7), post_norm=after)
    mlp = Mlp(r.whole("intermediate_size"), post_norm=after)

    def first(kind: str, window: int | None) -> Block:
        return conv if kind == KINDS[0] else replace(attention, rope=KINDS.index(kind) - 1, window=window)

    found = ModelSpec(
        **lfm_sizes(r),
        context_length=length,
        layers=tuple((first(kind, window), mlp) for kind, window in zip(kinds, spans, strict=True)),
        ropes=tuple(proportional(r, table, attention.head_dim, length) for table in tables),
    )
    return finish(r, found)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    gated = GATES in newer(spec)
    names = LFM3 if gated else {**LFM3, "attention": LFM3["attention"] | {"qkv": _PROJECTIONS[:3]}}
    return named(spec, names, outer=LFM2_OUTER)
