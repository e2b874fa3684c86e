"""EAGLE-3 (Li et al. 2025): one layer over states of three depths, in a draft vocabulary.

`fc` fuses the target's states of three depths into one; the layer reads the normed embedding of the next token and the
normed state. For further drafts its output takes the place of the fused state. Its own norm and `lm_head` predict the
next token in the draft vocabulary; token i is the target's i + `d2t`[i].

Layout: SafeAILab/EAGLE (`midlayer.*`); vLLM's and speculators' `layers.0.*` is read too, and `norm_before_residual`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from edgedec.errors import CheckpointError
from edgedec.models import Part
from edgedec.models._common import ConfigReader
from edgedec.models.drafts import DraftPlan, Merge
from edgedec.models.drafts._layers import ROTARY, Sources, draft_spec, layer_blocks, layer_sources
from edgedec.spec import ModelSpec

_DEPTH = 5


def matches(config: Mapping[str, Any], names: Collection[str]) -> bool:
    return "fc.weight" in names and "lm_head.weight" in names and any(n.endswith("hidden_norm.weight") for n in names)


def plan(config: Mapping[str, Any], names: Collection[str], target: ModelSpec) -> DraftPlan:
    r = ConfigReader({**(config.get("transformer_layer_config") or {}), **config})
    prefix = "midlayer." if "midlayer.hidden_norm.weight" in names else "layers.0."
    first = r.flag("norm_before_residual", False)  # the state itself is normed, not only what attention reads
    attention, mlp = layer_blocks(r, names, prefix, norm="none" if first else "rms", embedding_norm="rms")
    vocab = r.maybe_whole("draft_vocab_size") or r.whole("vocab_size")
    spec = draft_spec(r, "eagle3", target, ((attention, mlp),), vocab)
    sources: Sources = {"embed": (Part("lm_head.weight"),), "final_norm": (Part("norm.weight"),)}
    renamed = {"attention.norm": "hidden_norm.weight", "attention.embedding_norm": "input_layernorm.weight"}
    sources |= layer_sources(spec, 0, prefix, renamed)
    merges = {"features": Merge(("low", "middle", "high"), "fc.weight")}
    if first:
        merges["entry"] = Merge(("hidden",), "", (f"{prefix}hidden_norm.weight",))
    return DraftPlan(
        depth=_DEPTH,
        features=features(config, target),
        spec=spec,
        sources=sources,
        merges=merges,
        tokens="d2t" if "d2t" in names else "",
        ignored=(*ROTARY, "t2d"),
    )


def features(config: Mapping[str, Any], target: ModelSpec) -> tuple[int, int, int]:
    """The last blocks of the first 2, n/2 and n-3 of the target's n layers, or of as many as the config names."""
    own = config.get("eagle_config") or {}
    n = target.n_layers
    counts = own.get("eagle_aux_hidden_state_layer_ids") or config.get("eagle_aux_hidden_state_layer_ids")
    counts = counts or [2, n // 2, n - 3]
    if len(counts) != 3 or any(type(count) is not int or not 1 <= count <= n for count in counts):
        raise CheckpointError(f"config.json: states after {counts} layers of a target that has {n}")
    low, middle, high = (target.span(0, count).stop - 1 for count in counts)
    return low, middle, high
