"""Pads of lexical unit decoding (LUD): trained embeddings only.

Layout: edgedec's (`units.weight` [num_prompt_tokens, hidden_size]).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from edgedec.models._common import ConfigReader
from edgedec.models.drafts import DraftPlan
from edgedec.spec import ModelSpec

_UNITS = "units.weight"


def matches(config: Mapping[str, Any], names: Collection[str]) -> bool:
    return set(names) == {_UNITS}


def plan(config: Mapping[str, Any], names: Collection[str], target: ModelSpec) -> DraftPlan:
    return DraftPlan(depth=ConfigReader(config).whole("num_prompt_tokens"), features=(), embeddings=_UNITS)
