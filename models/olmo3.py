"""OLMo 3: OLMo 2 with a window on three of four layers, whose rope is not stretched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, finish, heads, sizes, sliding, windows
from edgedec.models._names import named
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.models.olmo2 import OLMO
from edgedec.spec import Attention, Mlp, ModelSpec

FACTS = ArchitectureFacts(IGNORED)
THETA = 500000.0


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    full = rope_table(r, THETA, "full_attention")
    local = rope_table(r, r.number("rope_theta", THETA), "sliding_attention", legacy=False)
    length = context_length(r, full, context)
    slides = sliding(r, [(i + 1) % 4 != 0 for i in range(r.whole("num_hidden_layers"))])
    spans = windows(r, slides, r.maybe_whole("sliding_window", 4096), length)
    bias = r.flag("attention_bias", False)
    attention = Attention(**heads(r), qk_norm="full", qkv_bias=bias, o_bias=bias, norm="none", post_norm="rms")
    mlp = Mlp(r.whole("intermediate_size"), activation=activation(r), norm="none", post_norm="rms")
    kinds = zip(slides, spans, strict=True)
    found = ModelSpec(
        **sizes(r, tied=False, eps=1e-5),
        context_length=length,
        layers=tuple((replace(attention, rope=int(on), window=w), mlp) for on, w in kinds),
        ropes=tuple(rope(r, table, attention.head_dim, length) for table in (full, local)),
    )
    return finish(r, found)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, OLMO)
