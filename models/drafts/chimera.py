"""Chimera (Zeng et al. 2024): a layer over the target's states and the trigrams of tokens, then a head for each depth.

A trigram, the embeddings of a token and of the two before it, becomes one row by `trimlp` (x + silu(Wx), then a
matrix). One layer of the target's own sizes attends to the target's last states, after its norm, and to the trigrams.
Head i reads the target's last state and the layer's output at the latest trigram side by side.

Layout: kafkayu/Chimera, whose files `trimlp.pt`, `fast_layer1.pt` and `chimera_head.pt` are one here, their tensors
with the file's name before theirs; no file of it was seen.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from edgedec.errors import CheckpointError
from edgedec.models.drafts import DraftPlan, Merge, Residual, Rung
from edgedec.models.drafts._layers import ROTARY, Sources, layer_sources
from edgedec.spec import Attention, Mlp, ModelSpec

_LAYER = "fast_layer1.0."


def matches(config: Mapping[str, Any], names: Collection[str]) -> bool:
    return "trimlp.1.weight" in names


def plan(config: Mapping[str, Any], names: Collection[str], target: ModelSpec) -> DraftPlan:
    heads = sum(name.startswith("chimera_head.") for name in names)
    if not heads or not all(f"chimera_head.{i}.0.weight" in names for i in range(heads)):
        raise CheckpointError("chimera_head: not heads of one matrix, numbered from 0")
    blocks = target.layers[0]
    if [type(block) for block in blocks] != [Attention, Mlp]:
        raise CheckpointError(f"{_LAYER}: only targets of attention and feed-forward layers are supported")
    spec = replace(
        target,
        architecture="chimera",
        vocab_size=1,  # it has no readout
        layers=(blocks,),
        tied=True,
        final_norm="none",
        final_softcap=0.0,
        embed_scale=1.0,
    )
    sources: Sources = {"embed": ()}
    gram = Merge(
        ("before", "middle", "token"),
        "trimlp.1.weight",
        layers=(Residual("trimlp.0.linear.weight", "trimlp.0.linear.bias"),),
    )
    return DraftPlan(
        depth=heads,
        features=(target.n_blocks - 1,),
        spec=spec,
        sources=sources | layer_sources(spec, 0, _LAYER, {}),
        merges={"trigram": gram},
        rungs=tuple(Rung((), f"chimera_head.{i}.0.weight") for i in range(heads)),
        rung_reads=2,
        normed=True,
        ignored=ROTARY,
    )
