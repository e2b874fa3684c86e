"""Hydra and Hydra++ (Ankner et al. 2024): a head for each depth that reads the tokens drafted before it.

Head i reads a state and the embeddings of i tokens. The state is the target's last one, after its norm; of Hydra++ what
a decoder layer of the target's own sizes and a norm make of it and of all states before it (prefix attention).

Layout: zankner/Hydra, `hydra_lm_head.pt`, heads of `prefix-mlp` with grounded heads. Of Hydra without the layer the
names of the heads are assumed to be the same; no file of it was seen.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from edgedec.errors import CheckpointError
from edgedec.models import Part
from edgedec.models.drafts import DraftPlan, Residual, Rung
from edgedec.models.drafts._layers import ROTARY, Sources, layer_sources
from edgedec.spec import Attention, Mlp, ModelSpec

_PREFIX = "prefix_embeding_layer."  # the authors' spelling


def matches(config: Mapping[str, Any], names: Collection[str]) -> bool:
    return "hydra_lm_head.0.1.weight" in names


def plan(config: Mapping[str, Any], names: Collection[str], target: ModelSpec) -> DraftPlan:
    heads = sorted({int(m[1]) for name in names if (m := re.match(r"hydra_lm_head\.(\d+)\.", name))})
    if heads != list(range(len(heads))) or not config.get("grounded_heads", True):
        raise CheckpointError(f"hydra_lm_head: heads {heads}, which are not grounded heads one after another")
    if config.get("hidden_state_offset", 0):
        raise CheckpointError("config.json: hidden_state_offset is set; heads on earlier states are not supported")
    spec, sources = _prefix(names, target)
    return DraftPlan(
        depth=len(heads),
        features=(target.n_blocks - 1,),
        spec=spec,
        sources=sources,
        rungs=tuple(_rung(i, config, names) for i in heads),
        normed=True,
        feeds="normed",
        ignored=(*ROTARY, r"hydra_mlp\..*"),
    )


def _prefix(names: Collection[str], target: ModelSpec) -> tuple[ModelSpec | None, Sources]:
    """The layer of Hydra++: one of the target's own kind."""
    if f"{_PREFIX}norm.weight" not in names:
        return None, {}
    blocks = target.layers[0]
    if [type(block) for block in blocks] != [Attention, Mlp]:
        raise CheckpointError(f"{_PREFIX}layers.0: only targets of attention and feed-forward layers are supported")
    spec = replace(
        target,
        architecture="hydrapp",
        vocab_size=1,  # it has no readout
        layers=(blocks,),
        tied=True,
        final_norm="rms",
        final_softcap=0.0,
        embed_scale=1.0,
    )
    sources: Sources = {"embed": (), "final_norm": (Part(f"{_PREFIX}norm.weight"),)}
    return spec, sources | layer_sources(spec, 0, f"{_PREFIX}layers.0.", {})


def _rung(i: int, config: Mapping[str, Any], names: Collection[str]) -> Rung:
    """Head i. Its later layers are one shared module under several names, so any of these names is the same tensor."""
    own = sorted({int(m[1]) for name in names if (m := re.match(rf"hydra_mlp\.{i}\.(\d+)\.linear\.weight", name))})
    if not own:
        raise CheckpointError(f"hydra_mlp.{i}: missing")
    count = config.get("hydra_num_layers", len(own))
    places = [own[min(j, len(own) - 1)] for j in range(count)]
    layers = [_layer(f"hydra_mlp.{i}.{place}.", names) for place in places]
    readout = f"hydra_lm_head.{i}.1."
    return Rung(tuple(layers), f"{readout}weight", f"{readout}bias" if f"{readout}bias" in names else "")


def _layer(prefix: str, names: Collection[str]) -> Residual:
    def there(name: str) -> str:
        return f"{prefix}{name}" if f"{prefix}{name}" in names else ""

    return Residual(
        f"{prefix}linear.weight", there("linear.bias"), there("res_connection.weight"), there("res_connection.bias")
    )
