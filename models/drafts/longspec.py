"""LongSpec (Yang et al. 2025): a layer with a state of fixed size that also reads the target's cache.

From a token's embedding, three parts: attention over a window of the latest tokens and the first few; attention of the
target's own last block, which sees its keys and values of the whole text (`query` makes the state that enters it,
`merge` joins its output with the earlier state); an MLP. `lm_head` predicts the next token in the draft vocabulary;
token i is the target's i + `d2t`[i].

Layout: edgedec's. The authors' layer has a query matrix of its own; here `query` and the target's matrix replace it, so
that any engine can run it over the target's pages.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from edgedec.errors import CheckpointError
from edgedec.models import Part
from edgedec.models._common import ConfigReader
from edgedec.models.drafts import DraftPlan, Merge
from edgedec.models.drafts._layers import ROTARY, Sources, draft_spec, layer_blocks, layer_sources
from edgedec.spec import Attention, ModelSpec

_DEPTH = 5


def matches(config: Mapping[str, Any], names: Collection[str]) -> bool:
    return "cross_attn.query.weight" in names


def plan(config: Mapping[str, Any], names: Collection[str], target: ModelSpec) -> DraftPlan:
    r = ConfigReader(config)
    window, sinks, prefix = r.whole("sliding_window"), r.whole("num_sinks"), "layers.0."
    block = r.maybe_whole("cross_block")
    if block != cross_block(target):
        raise CheckpointError(f"config.json: cross_block is {block}, the target's is {cross_block(target)}")
    attention, mlp = layer_blocks(r, names, prefix)
    windowed = Attention(**{**vars(attention), "window": window, "sinks": sinks})
    vocab = r.maybe_whole("draft_vocab_size") or r.whole("vocab_size")
    capped = {"final_softcap": target.final_softcap}
    spec = draft_spec(r, "longspec", target, ((windowed, mlp),), vocab, **capped)
    sources: Sources = {"embed": (Part("lm_head.weight"),), "final_norm": (Part("norm.weight"),)}
    return DraftPlan(
        depth=_DEPTH,
        features=(block,),
        spec=spec,
        sources=sources | layer_sources(spec, 0, prefix, {}),
        merges={
            "query": Merge(("hidden",), "cross_attn.query.weight"),
            "merge": Merge(("hidden", "cross"), "cross_attn.merge.weight"),
        },
        tokens="d2t" if "d2t" in names else "",
        ignored=ROTARY,
    )


def cross_block(target: ModelSpec) -> int:
    """The target's block whose cache is read: its last attention block without a window, else its last one."""
    found = [b for b, block in target.attention.items() if isinstance(block, Attention) and not block.paired]
    whole = [b for b in found if target.attention[b].window is None]
    if not found:
        raise CheckpointError(f"{target.architecture}: a longspec draft reads an attention block, the target has none")
    return (whole or found)[-1]
