"""Fast-dLLM v2 (arXiv:2509.26328): Qwen2 in blocks of `bd_size` that see each other whole, and earlier blocks.

Shifted: a block's first token comes from the row before it. Rests on the authors' code, in which the mask is a default
of the sampling function and no entry of the config.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Fills, Source, qwen2
from edgedec.models._diffusion import base_config
from edgedec.spec import ModelSpec

FACTS = ArchitectureFacts(
    qwen2.FACTS.ignored, Fills(shift=True, context="block", block=32, block_key="bd_size", mask=151665)
)


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    return qwen2.spec(base_config(config, "bd_size"), context)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return qwen2.weights(spec, config)
