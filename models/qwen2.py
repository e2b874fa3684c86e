"""Qwen2 and Qwen2.5: Llama with biases on q, k and v, and windows from some layer on if switched on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, finish, heads, sizes, sliding, windows
from edgedec.models._encoders import last_token_score
from edgedec.models._names import named
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.spec import Attention, Mlp, ModelSpec

FACTS = ArchitectureFacts(IGNORED)


def qwen_windows(r: ConfigReader, context: int) -> list[int | None]:
    """The window of every layer, as Qwen configs give it."""
    window = r.maybe_whole("sliding_window", 4096)
    window = window if r.flag("use_sliding_window", False) else None
    first = r.whole("max_window_layers", 28, least=0)
    pattern = [window is not None and i >= first for i in range(r.whole("num_hidden_layers"))]
    return windows(r, sliding(r, pattern), window, context)


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    table = rope_table(r)
    length = context_length(r, table, context)
    attention = Attention(**heads(r, kv_heads=32), qkv_bias=True)
    mlp = Mlp(r.whole("intermediate_size"), activation=activation(r))
    found = ModelSpec(
        **sizes(r, tied=False),
        context_length=length,
        layers=tuple((replace(attention, window=w), mlp) for w in qwen_windows(r, length)),
        ropes=(rope(r, table, attention.head_dim, length),),
        output=last_token_score(r, "Qwen2ForSequenceClassification"),
    )
    return finish(r, found)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec)
