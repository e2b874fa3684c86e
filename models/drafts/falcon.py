"""Falcon (Gao et al. 2024): an LSTM over embeddings and states, then layers whose rows see their whole block.

Row i reads the target's last state at token i, after its norm, and the embedding of token i + 1; a block is `k_mask`
rows. The layers' output is the state k tokens ahead, which the target's own readout reads.

Layout: Bestpay-inc/Falcon, `lstm.weight_ih_l0` .. of a torch LSTM of two layers; the first layer has no norm before
its attention, and nothing is normed before the readout. `k_mask` in config.json.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from edgedec.errors import CheckpointError
from edgedec.models._common import ConfigReader
from edgedec.models.drafts import DraftPlan
from edgedec.models.drafts._layers import ROTARY, Sources, draft_spec, layer_blocks, layer_sources
from edgedec.spec import ModelSpec

# Blocks in a row; the authors' tree has four.
_BLOCKS = 3
_LARGEST = 8


def matches(config: Mapping[str, Any], names: Collection[str]) -> bool:
    return "lstm.weight_ih_l1" in names


def plan(config: Mapping[str, Any], names: Collection[str], target: ModelSpec) -> DraftPlan:
    r = ConfigReader(config)
    size, layers = r.whole("k_mask", 2), r.whole("num_hidden_layers", 1)
    if not 1 <= size <= _LARGEST:
        raise CheckpointError(f"config.json: k_mask is {size}; must be from 1 to {_LARGEST}")
    blocks = tuple(layer_blocks(r, names, f"layers.{i}.", norm="rms" if i else "none") for i in range(layers))
    spec = draft_spec(r, "falcon", target, blocks, final_norm="none", final_softcap=target.final_softcap)
    sources: Sources = {"embed": None}
    for i in range(layers):
        sources |= layer_sources(spec, i, f"layers.{i}.", {})
    return DraftPlan(
        depth=_BLOCKS * size,
        features=(target.n_blocks - 1,),
        spec=spec,
        sources=sources,
        lstm="lstm.",
        block=size,
        normed=True,
        ignored=ROTARY,
    )
