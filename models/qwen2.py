"""Qwen2 and Qwen2.5: Llama with biases on q, k and v, and windows from some layer on if switched on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import Source
from edgedec.models._common import IGNORED, Reader, activation, finish, named, sizes, sliding, windows
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.spec import Layer, ModelSpec

ignored = IGNORED


def qwen_windows(r: Reader, context: int) -> list[int | None]:
    """The window of every layer, as Qwen configs tell it."""
    window = r.maybe_whole("sliding_window", 4096)
    window = window if r.flag("use_sliding_window", False) else None
    first = r.whole("max_window_layers", 28, least=0)
    pattern = [window is not None and i >= first for i in range(r.whole("num_hidden_layers"))]
    return windows(r, sliding(r, pattern), window, context)


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = Reader(config)
    common, table = sizes(r, tied=False, kv_heads=32), rope_table(r)
    length = context_length(r, table, context)
    found = ModelSpec(
        **common,
        context_length=length,
        layers=tuple(Layer(window=w) for w in qwen_windows(r, length)),
        ropes=(rope(r, table, common["head_dim"], length),),
        qkv_bias=True,
        activation=activation(r),
    )
    return finish(r, found)


def weights(spec: ModelSpec) -> dict[str, Source]:
    return named(spec)
