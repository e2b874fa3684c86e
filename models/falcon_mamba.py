"""FalconMamba: Mamba whose B, C and time steps' parts are normed, by norms without weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
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
    block = replace(s6(r), part_norm="plain", part_eps=r.number("mixer_rms_eps", 1e-6))
    found = ModelSpec(**common, context_length=length, layers=((block,),) * r.whole("num_hidden_layers"))
    return finish(r, found)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, NAMES, outer=BACKBONE, layers=IN_LAYERS)
