"""Heads after early layers and a controller that says where a token leaves (stop and exit controller).

Layout: edgedec's, after the authors' modules (`lm_heads.N.weight` [vocab, hidden_size], `controller.weight` [3,
hidden_size]; `exit_layers` in config.json, after how many layers each head stands).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from edgedec.errors import CheckpointError
from edgedec.models.drafts import DraftPlan, Rung
from edgedec.spec import ModelSpec

_CONTROLLER = "controller.weight"


def matches(config: Mapping[str, Any], names: Collection[str]) -> bool:
    return {_CONTROLLER, "lm_heads.0.weight"} <= set(names)


def plan(config: Mapping[str, Any], names: Collection[str], target: ModelSpec) -> DraftPlan:
    given, n = config.get("exit_layers"), len(names) - 1
    layers = [layer for layer in given if type(layer) is int] if isinstance(given, list) else []
    if layers != given or len(layers) != n or layers != sorted({*layers} & {*range(1, target.n_layers)}):
        why = f"{n} ascending numbers below the target's {target.n_layers} layers"
        raise CheckpointError(f"config.json: exit_layers is {given}; expected {why}")
    heads = tuple(Rung((), f"lm_heads.{i}.weight") for i in range(n))
    features = tuple(target.span(0, layer).stop - 1 for layer in layers)
    return DraftPlan(depth=n, features=features, rungs=(*heads, Rung((), _CONTROLLER)))
