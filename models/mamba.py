"""Mamba: nothing but selective state spaces, so a text of any length has a state of one size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import ConfigReader, finish
from edgedec.models._mamba import BACKBONE, IN_LAYERS, S6_PATHS, alone, in_mixer, s6
from edgedec.models._names import Names, named
from edgedec.spec import ModelSpec

FACTS = ArchitectureFacts((r"lm_head\.weight",))
NAMES: Names = {"s6": in_mixer(S6_PATHS)}


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    common, length = alone(r, context, tied=True)
    found = ModelSpec(**common, context_length=length, layers=((s6(r),),) * r.whole("num_hidden_layers"))
    return finish(r, found)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, NAMES, outer=BACKBONE, layers=IN_LAYERS)
