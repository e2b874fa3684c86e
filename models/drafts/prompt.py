"""Prompt tokens of parallel prompt decoding (PPD): trained embeddings only.

Layout: edgedec's, the paper's weights depend on its own code (`prompts.weight` [num_prompt_tokens, hidden_size]).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from edgedec.models._common import ConfigReader
from edgedec.models.drafts import DraftPlan
from edgedec.spec import ModelSpec

_PROMPTS = "prompts.weight"


def matches(config: Mapping[str, Any], names: Collection[str]) -> bool:
    return set(names) == {_PROMPTS}


def plan(config: Mapping[str, Any], names: Collection[str], target: ModelSpec) -> DraftPlan:
    return DraftPlan(depth=ConfigReader(config).whole("num_prompt_tokens"), features=(), embeddings=_PROMPTS)
