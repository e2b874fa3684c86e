"""GraniteMoE with an MLP beside the experts that every row passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader
from edgedec.models._names import named
from edgedec.models.granitemoe import multipliers
from edgedec.models.granitemoe import spec as granitemoe_spec
from edgedec.models.granitemoehybrid import HYBRID
from edgedec.spec import Block, ModelSpec, Moe

FACTS = ArchitectureFacts(IGNORED)


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    shared = ConfigReader(config).whole("shared_intermediate_size", 0, least=0)
    found = granitemoe_spec({k: v for k, v in config.items() if k != "shared_intermediate_size"}, context)

    def beside(block: Block) -> Block:
        return replace(block, shared_size=shared) if isinstance(block, Moe) else block

    return replace(found, layers=tuple(tuple(map(beside, layer)) for layer in found.layers)).check()


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, HYBRID, times=multipliers(ConfigReader(config)))
