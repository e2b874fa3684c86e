"""Mistral: Llama with one window for all layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, finish, heads, sizes, sliding, windows
from edgedec.models._names import named
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.spec import Attention, Mlp, ModelSpec

FACTS = ArchitectureFacts(IGNORED)


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    table = rope_table(r)
    length = context_length(r, table, context)
    window = r.maybe_whole("sliding_window", 4096)
    uniform = [window is not None] * r.whole("num_hidden_layers")
    if sliding(r, uniform) != uniform:
        raise r.fail("layer_types", "contradicts sliding_window: Mistral has one window for all layers")
    attention, mlp = Attention(**heads(r, kv_heads=8)), Mlp(r.whole("intermediate_size"), activation=activation(r))
    found = ModelSpec(
        **sizes(r, tied=False),
        context_length=length,
        layers=tuple((replace(attention, window=w), mlp) for w in windows(r, uniform, window, length)),
        ropes=(rope(r, table, attention.head_dim, length),),
    )
    return finish(r, found)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec)
