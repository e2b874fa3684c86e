"""Mistral: Llama with one window for all layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import Source
from edgedec.models._common import IGNORED, Reader, activation, finish, named, sizes, sliding, windows
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.spec import Layer, ModelSpec

ignored = IGNORED


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = Reader(config)
    common, table = sizes(r, tied=False, kv_heads=8), rope_table(r)
    length = context_length(r, table, context)
    window = r.maybe_whole("sliding_window", 4096)
    uniform = [window is not None] * r.whole("num_hidden_layers")
    if sliding(r, uniform) != uniform:
        raise r.fail("layer_types", "contradicts sliding_window: Mistral has one window for all layers")
    found = ModelSpec(
        **common,
        context_length=length,
        layers=tuple(Layer(window=w) for w in windows(r, uniform, window, length)),
        ropes=(rope(r, table, common["head_dim"], length),),
        activation=activation(r),
    )
    return finish(r, found)


def weights(spec: ModelSpec) -> dict[str, Source]:
    return named(spec)
