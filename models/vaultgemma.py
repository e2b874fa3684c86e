"""VaultGemma: Gemma 2 without norms after its blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED
from edgedec.models._names import ATTENTION, MLP, Names, named
from edgedec.models.gemma2 import spec as gemma2
from edgedec.spec import Attention, Block, Mlp, ModelSpec

FACTS = ArchitectureFacts(IGNORED)
NAMES: Names = {"attention": ATTENTION, "mlp": MLP | {"norm": ("pre_feedforward_layernorm.weight",)}}


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    found = gemma2(config, context)
    return replace(found, layers=tuple(tuple(map(_without_post_norm, layer)) for layer in found.layers))


def _without_post_norm(block: Block) -> Block:
    assert isinstance(block, Attention | Mlp)
    return replace(block, post_norm="none")


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, NAMES, norm_add=1.0)
