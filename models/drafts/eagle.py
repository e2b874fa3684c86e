"""EAGLE-1 and EAGLE-2 (Li et al. 2024): layers over the target's last state, and the target's own readout.

`fc` combines the embedding of the next token and the target's last state, after its norm, into one state; from it the
layer predicts the target's next state. EAGLE-2 has the same weights and grows trees by confidence; the drafter does so
with both.

Layout: SafeAILab/EAGLE; the first layer has no norm before its attention, and nothing is normed before the readout.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from edgedec.models._common import ConfigReader
from edgedec.models.drafts import DraftPlan, Merge
from edgedec.models.drafts._layers import ROTARY, Sources, draft_spec, layer_blocks, layer_sources
from edgedec.spec import ModelSpec

_DEPTH = 5


def matches(config: Mapping[str, Any], names: Collection[str]) -> bool:
    return "fc.weight" in names and "layers.0.self_attn.q_proj.weight" in names and "lm_head.weight" not in names


def plan(config: Mapping[str, Any], names: Collection[str], target: ModelSpec) -> DraftPlan:
    r = ConfigReader(config)
    layers = r.whole("num_hidden_layers", 1)
    blocks = tuple(layer_blocks(r, names, f"layers.{i}.", norm="rms" if i else "none") for i in range(layers))
    spec = draft_spec(r, "eagle", target, blocks, final_norm="none", final_softcap=target.final_softcap)
    sources: Sources = {"embed": None}
    for i in range(layers):
        sources |= layer_sources(spec, i, f"layers.{i}.", {})
    bias = "fc.bias" if "fc.bias" in names else ""
    return DraftPlan(
        depth=_DEPTH,
        features=(target.n_blocks - 1,),
        spec=spec,
        sources=sources,
        merges={"entry": Merge(("embedding", "hidden"), "fc.weight", bias=bias)},
        normed=True,
        ignored=ROTARY,
    )
