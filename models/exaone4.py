"""EXAONE 4: norms after each block and on heads of q and k; in hybrids, layers that see all do not rotate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, heads, sliding, windows
from edgedec.models._dense import rotary
from edgedec.models._names import named
from edgedec.models.olmo2 import OLMO
from edgedec.spec import Attention, Mlp, ModelSpec

FACTS = ArchitectureFacts(IGNORED)


def _pattern(r: ConfigReader, n: int) -> list[bool]:
    """Which layers have a window, by a number (every so many see all) or a word such as LLLG, whose last layer sees
    all."""
    found = r.value("sliding_window_pattern", 4)
    if isinstance(found, str) and found and set(found) <= {"L", "G"}:
        return [found[i % len(found)] == "L" and i < n - 1 for i in range(n)]
    every = r.whole("sliding_window_pattern", 4) if found else 1
    return [(i + 1) % every != 0 for i in range(n)]


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    n, window = r.whole("num_hidden_layers"), r.maybe_whole("sliding_window", 4096)
    pattern = _pattern(r, n)
    slides = sliding(r, pattern if window is not None else [False] * n)
    attention = Attention(**heads(r), qk_norm="head", norm="none", post_norm="rms")
    mlp = Mlp(r.whole("intermediate_size"), activation=activation(r), norm="none", post_norm="rms")

    def layers(length: int) -> list[tuple[Attention, Mlp]]:
        kinds = zip(slides, windows(r, slides, window, length), strict=True)
        return [(replace(attention, rope=0 if on or window is None else None, window=w), mlp) for on, w in kinds]

    return rotary(r, context, layers, attention.head_dim, tied=False, eps=1e-5)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, OLMO)
