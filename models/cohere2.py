"""Command R7B and Command A: Cohere with a window and a rope on three of four layers, and neither on the fourth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader, sliding, windows
from edgedec.models._dense import rotary
from edgedec.models.cohere import attended, feed_forward, logit_scale
from edgedec.models.cohere import weights as cohere_weights
from edgedec.spec import Attention, Mlp, ModelSpec

FACTS = ArchitectureFacts(IGNORED)


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    logit_scale(r)  # `weights` needs it
    r.value("order_of_interleaved_layers", None)  # layer_types or the pattern say it
    for key, usual in (("rotary_pct", 1.0), ("use_gated_activation", True), ("use_parallel_block", True)):
        if r.value(key, usual) != usual:
            raise r.fail(key, f"{r.values[key]!r:.40} is not supported; known: {usual}")
    every, window = r.whole("sliding_window_pattern", 4), r.maybe_whole("sliding_window", 4096)
    slides = sliding(r, [(i + 1) % every != 0 for i in range(r.whole("num_hidden_layers"))])
    block, mlp = attended(r), feed_forward(r)

    def layers(length: int) -> list[tuple[Attention, Mlp]]:
        kinds = zip(slides, windows(r, slides, window, length), strict=True)
        return [(replace(block, rope=0 if on else None, window=w), mlp) for on, w in kinds]

    facts: dict[str, Any] = {"eps": 1e-5, "eps_key": "layer_norm_eps", "final_norm": "layer"}
    return rotary(r, context, layers, block.head_dim, tied=True, **facts)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return cohere_weights(spec, config)
