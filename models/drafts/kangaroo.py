"""Kangaroo (Liu et al. 2024): attention layers without an MLP over the states after the target's first layers.

Their normed output is read by the target's own readout in place of the last state.

Layout: Equationliu/Kangaroo (`layers.N.self_attn.*`, `layers.N.input_layernorm`, `norm`). How many of the target's
layers come before is an argument of the authors' programs: it has to be added to config.json as `exit_layer`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from edgedec.errors import CheckpointError
from edgedec.models import Part
from edgedec.models._common import ConfigReader
from edgedec.models.drafts import DraftPlan
from edgedec.models.drafts._layers import ROTARY, Sources, draft_spec, layer_blocks, layer_sources
from edgedec.spec import ModelSpec

_DEPTH = 6


def matches(config: Mapping[str, Any], names: Collection[str]) -> bool:
    needed = {"layers.0.self_attn.q_proj.weight", "layers.0.input_layernorm.weight", "norm.weight"}
    return needed <= set(names) and not any(name == "fc.weight" or ".mlp." in name for name in names)


def plan(config: Mapping[str, Any], names: Collection[str], target: ModelSpec) -> DraftPlan:
    r = ConfigReader(config)
    layers = r.whole("num_hidden_layers", 1)
    blocks = tuple(layer_blocks(r, names, f"layers.{i}.")[:1] for i in range(layers))
    spec = draft_spec(r, "kangaroo", target, blocks, final_softcap=target.final_softcap)
    sources: Sources = {"embed": None, "final_norm": (Part("norm.weight"),)}
    for i in range(layers):
        sources |= layer_sources(spec, i, f"layers.{i}.", {})
    return DraftPlan(
        depth=_DEPTH,
        features=(target.span(0, _exit_layer(r, target)).stop - 1,),
        spec=spec,
        sources=sources,
        ignored=(*ROTARY, r"(lm_)?head(_model)?\.weight"),
    )


def _exit_layer(r: ConfigReader, target: ModelSpec) -> int:
    """After so many of the target's layers it reads."""
    layer = r.maybe_whole("exit_layer")
    if layer is None:
        why = "the target's layers before the adapter, an argument of the authors' programs (2 of Vicuna 7B)"
        raise CheckpointError(f"config.json: exit_layer is missing: {why}")
    if not 1 <= layer < target.n_layers:
        raise CheckpointError(f"config.json: exit_layer is {layer}, the target has {target.n_layers} layers")
    return layer
