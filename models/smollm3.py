"""SmolLM3: Llama in which every fourth layer has no positions at all (NoPE, arXiv 2501.18795)."""

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


def roped(r: ConfigReader) -> list[bool]:
    """Which layers rotate. A 1 in `no_rope_layers` means, contrary to its name, that the layer rotates."""
    n = r.whole("num_hidden_layers")
    interval = r.whole("no_rope_layer_interval", 4)
    given = r.items("no_rope_layers", int) or [int((i + 1) % interval != 0) for i in range(n)]
    if len(given) < n:
        raise r.fail("no_rope_layers", f"names {len(given)} layers of {n}")
    return [bool(flag) for flag in given[:n]]


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    table, ropes = rope_table(r, 2e6), roped(r)
    length = context_length(r, table, context)
    r.value("max_window_layers", None)  # a leftover of Qwen: layer_types decides
    window, use = r.maybe_whole("sliding_window"), r.flag("use_sliding_window", False)
    slides = sliding(r, [use and window is not None and not on for on in ropes])
    if any(slides) and not use:
        raise r.fail("layer_types", "names sliding_attention while use_sliding_window is false")
    spans = windows(r, slides, window, length)
    bias, mlp_bias = r.flag("attention_bias", False), r.flag("mlp_bias", False)
    attention = Attention(**heads(r, kv_heads=4), qkv_bias=bias, o_bias=bias)
    mlp = Mlp(r.whole("intermediate_size"), bias=mlp_bias, activation=activation(r))
    kinds = [replace(attention, rope=0 if on else None, window=w) for on, w in zip(ropes, spans, strict=True)]
    found = ModelSpec(
        **sizes(r, tied=True),
        context_length=length,
        layers=tuple((kind, mlp) for kind in kinds),
        ropes=(rope(r, table, attention.head_dim, length),),
    )
    return finish(r, found)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec)
