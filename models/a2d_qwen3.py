"""Qwen3 that dLLM's recipe made a diffusion model (Tiny-A2D, 0.6B). Unshifted, blocks of 32.

Rests on the authors' code, which has no entry for the block or the mask: the mask is the tokenizer's, and 32 is the
block of their samplers and evaluations. Their two checkpoints have equal configs; this is the one in blocks (bd3lm).
The other (mdlm) sees everything, which `"diffusion": {"context": "full"}` in config.json says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Fills, Source, qwen3
from edgedec.models._diffusion import base_config
from edgedec.spec import ModelSpec

FACTS = ArchitectureFacts(qwen3.FACTS.ignored, Fills(shift=False, context="block", block=32))


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    return qwen3.spec(base_config(config), context)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return qwen3.weights(spec, config)
