"""Ministral (8B, 2410): Mistral with a window on some layers, named in the config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, heads, sliding, windows
from edgedec.models._dense import rotary
from edgedec.models._names import named
from edgedec.spec import Attention, Mlp, ModelSpec

FACTS = ArchitectureFacts(IGNORED)


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    window = r.maybe_whole("sliding_window", 4096)
    slides = sliding(r, [window is not None] * r.whole("num_hidden_layers"))
    attention, mlp = Attention(**heads(r, kv_heads=8)), Mlp(r.whole("intermediate_size"), activation=activation(r))

    def layers(length: int) -> list[tuple[Attention, Mlp]]:
        return [(replace(attention, window=w), mlp) for w in windows(r, slides, window, length)]

    return rotary(r, context, layers, attention.head_dim, tied=False)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec)
