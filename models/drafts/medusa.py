"""Medusa (Cai et al. 2024): a head for each depth, all on the target's last state, after its norm.

A head is residual layers, x + silu(W x + b), and a readout of its own.

Layout: FasterDecoding/Medusa, `medusa_lm_head.pt` (`0.0.linear.weight`, ..., `0.1.weight`), also with the prefix
`medusa_head.`, as safetensors or as torch wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from edgedec.errors import CheckpointError
from edgedec.models.drafts import DraftPlan, Residual, Rung
from edgedec.spec import ModelSpec

_HEAD = re.compile(r"(medusa_head\.|medusa_heads\.|)(\d+)\.(\d+)\.(linear\.weight|linear\.bias|weight)\Z")


def matches(config: Mapping[str, Any], names: Collection[str]) -> bool:
    return any((m := _HEAD.match(name)) and m[4] == "linear.weight" for name in names)


def plan(config: Mapping[str, Any], names: Collection[str], target: ModelSpec) -> DraftPlan:
    found = [m for name in names if (m := _HEAD.match(name))]
    prefix, heads = found[0][1], sorted({int(m[2]) for m in found})
    if heads != list(range(len(heads))) or any(m[1] != prefix for m in found):
        raise CheckpointError(f"{prefix}: heads {heads}, not one after another")
    return DraftPlan(
        depth=len(heads),
        features=(target.n_blocks - 1,),
        rungs=tuple(_rung(f"{prefix}{i}.", names) for i in heads),
        normed=True,
    )


def _rung(prefix: str, names: Collection[str]) -> Rung:
    places = sorted({int(m[3]) for name in names if name.startswith(prefix) and (m := _HEAD.match(name))})
    layers = tuple(
        Residual(
            f"{prefix}{j}.linear.weight", f"{prefix}{j}.linear.bias" if f"{prefix}{j}.linear.bias" in names else ""
        )
        for j in places[:-1]
    )
    return Rung(layers, f"{prefix}{places[-1]}.weight")
