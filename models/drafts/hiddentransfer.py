"""Hidden Transfer: a matrix for each token ahead, on the states after one of the target's layers.

Layout: edgedec's, there is no published one (`transfers.N.weight` [hidden_size, hidden_size], N from 0;
`transfer_layer` in config.json).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from edgedec.errors import CheckpointError
from edgedec.models.drafts import DraftPlan, Merge
from edgedec.spec import ModelSpec


def matches(config: Mapping[str, Any], names: Collection[str]) -> bool:
    return "transfers.0.weight" in names


def plan(config: Mapping[str, Any], names: Collection[str], target: ModelSpec) -> DraftPlan:
    depth, layer = len(names), config.get("transfer_layer")
    if type(layer) is not int or not 1 <= layer < target.n_layers:
        raise CheckpointError(f"config.json: transfer_layer is {layer}, the target has {target.n_layers} layers")
    merges = {f"ahead_{i + 1}": Merge(("hidden",), f"transfers.{i}.weight") for i in range(depth)}
    return DraftPlan(depth=depth, features=(target.span(0, layer).stop - 1,), merges=merges)
