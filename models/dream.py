"""Dream (arXiv:2508.15487), and DiffuCoder, which is one: Qwen2 that sees everything. Shifted, as the model before it.

Rests on the authors' code: `mask_token_id`, and logits moved by one position. It fills a canvas in any order; blocks of
32 are those of Fast-dLLM's decoding of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Fills, Source, qwen2
from edgedec.models._diffusion import base_config
from edgedec.spec import ModelSpec

FACTS = ArchitectureFacts(qwen2.FACTS.ignored, Fills(shift=True, context="full", block=32, mask=151666))


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    return qwen2.spec(base_config(config), context)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return qwen2.weights(spec, config)
