"""Phi-3, Phi-3.5 and Phi-4 mini: Llama with q, k, v fused, gate and up fused, and long and short ropes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, finish, heads, sizes, windows
from edgedec.models._names import ATTENTION, MLP, Names, named
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.spec import Attention, Mlp, ModelSpec

FACTS = ArchitectureFacts(IGNORED)
PHI: Names = {
    "attention": ATTENTION | {"qkv": ("self_attn.qkv_proj.weight",)},
    "mlp": MLP | {"gate_up": ("mlp.gate_up_proj.weight",)},
}


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader({"original_max_position_embeddings": 4096, **config})
    table = rope_table(r, partial=True)
    if table.text("rope_type") in ("su", "yarn"):  # early names of longrope; Phi never had YaRN
        table = ConfigReader({**table.values, "rope_type": "longrope"}, table.where)
    length = context_length(r, table, context)
    window = r.maybe_whole("sliding_window")
    slides = [window is not None] * r.whole("num_hidden_layers")
    attention, mlp = Attention(**heads(r)), Mlp(r.whole("intermediate_size"), activation=activation(r))
    found = ModelSpec(
        **sizes(r, tied=False, eps=1e-5),
        context_length=length,
        layers=tuple((replace(attention, window=w), mlp) for w in windows(r, slides, window, length)),
        ropes=(rope(r, table, attention.head_dim, length),),
    )
    for key in ("full_attn_mod", "interpolate_factor"):  # Phi-4 mini writes them, as 1, which changes nothing
        if r.value(key, 1) != 1:
            raise r.fail(key, f"{r.values[key]!r} is not supported; known: 1")
    return finish(r, found)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, PHI)
