"""Multi-token prediction (DeepSeek-V3, arXiv 2412.19437): extra layers in a model's checkpoint.

One matrix combines the embedding of the next token and the target's last state, each normed, into a state; a layer like
the model's own and a norm follow, then the model's readout. Only the first such layer is used, again and again.

Layouts, as vLLM reads them: `model.layers.N.*` after the model's N layers, with `enorm`, `hnorm`, `eh_proj` and
`shared_head` (DeepSeek-V3, GLM-4.5); `mtp.*` (Qwen3-Next); `model.mtp_layers.0.*` (MiMo). Latent attention (DeepSeek's
own) and gated attention (Qwen3-Next's own) are no blocks of this engine and are refused by name.

The input is the state after the model's last norm (MiMo: before it); a drafted row passes its state before the layer's
last norm (Qwen3-Next: after it) to the next row.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from edgedec.errors import CheckpointError
from edgedec.models import Part
from edgedec.models._common import ConfigReader
from edgedec.models.drafts import DraftPlan, Merge
from edgedec.models.drafts._layers import Sources, draft_spec, layer_blocks, layer_sources
from edgedec.spec import ModelSpec

_DEPTH = 3


@dataclass(frozen=True)
class _Layout:
    """Where the parts are. order: of the columns of `matrix`; feeds: as in `DraftFacts`, target_normed: its `normed`;
    readouts: names to try."""

    layer: str
    matrix: str
    norms: dict[str, str]
    order: tuple[str, str]
    final_norm: str
    readouts: tuple[str, ...]
    feeds: Literal["state", "normed"]
    norm_add: float = 0.0
    target_normed: bool = True


def _layouts(config: Mapping[str, Any]) -> list[_Layout]:
    n = config.get("num_hidden_layers", 0)
    deep, mimo = f"model.layers.{n}.", "model.mtp_layers.0."
    usual, readouts = ("embedding", "hidden"), ("lm_head.weight", "model.embed_tokens.weight")
    return [
        _Layout(
            deep,
            f"{deep}eh_proj.weight",
            {"embedding": f"{deep}enorm.weight", "hidden": f"{deep}hnorm.weight"},
            usual,
            f"{deep}shared_head.norm.weight",
            (f"{deep}shared_head.head.weight", *readouts),
            "state",
        ),
        _Layout(
            "mtp.layers.0.",
            "mtp.fc.weight",
            {"embedding": "mtp.pre_fc_norm_embedding.weight", "hidden": "mtp.pre_fc_norm_hidden.weight"},
            usual,
            "mtp.norm.weight",
            readouts,
            "normed",
            1.0,
        ),
        _Layout(
            mimo,
            f"{mimo}input_proj.weight",
            {"embedding": f"{mimo}token_layernorm.weight", "hidden": f"{mimo}hidden_layernorm.weight"},
            ("hidden", "embedding"),
            f"{mimo}final_layernorm.weight",
            readouts,
            "state",
            target_normed=False,  # in its authors' engine the model gives its states before the last norm
        ),
    ]


def _layout(config: Mapping[str, Any], names: Collection[str]) -> _Layout | None:
    return next((layout for layout in _layouts(config) if layout.matrix in names), None)


def mtp_tensors(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Regular expressions of the names of such layers in a model's checkpoint; the model itself does not use them."""
    count, n = config.get("num_nextn_predict_layers") or 0, config.get("num_hidden_layers")
    if type(count) is not int or type(n) is not int:
        return ()
    deep = tuple(rf"model\.layers\.{n + i}\..*" for i in range(min(count, 16)))
    return (*deep, r"mtp\..*", r"model\.mtp_layers\..*") if count else (r"mtp\..*",)


def matches(config: Mapping[str, Any], names: Collection[str]) -> bool:
    return _layout(config, names) is not None


def plan(config: Mapping[str, Any], names: Collection[str], target: ModelSpec) -> DraftPlan:
    layout = _layout(config, names)
    assert layout is not None
    _require_plain(config, names, layout.layer)
    r = ConfigReader(config)
    attention, mlp = layer_blocks(r, names, layout.layer)
    spec = draft_spec(r, "mtp", target, ((attention, mlp),))
    readout = next((name for name in layout.readouts if name in names), "")
    sources: Sources = {
        "embed": (Part(readout),) if readout else None,
        "final_norm": (Part(layout.final_norm, add=layout.norm_add),),
        **layer_sources(spec, 0, layout.layer, {}, layout.norm_add),
    }
    norms = tuple(layout.norms[name] for name in layout.order)
    return DraftPlan(
        depth=_DEPTH,
        features=(target.n_blocks - 1,),
        spec=spec,
        sources=sources,
        merges={"entry": Merge(layout.order, layout.matrix, norms, norm_add=layout.norm_add)},
        normed=layout.target_normed,
        feeds=layout.feeds,
        ignored=(".*",),  # it comes inside a whole model
    )


def _require_plain(config: Mapping[str, Any], names: Collection[str], layer: str) -> None:
    """CheckpointError unless the layer is of blocks that there are."""
    if any(f"{layer}self_attn.{part}" in names for part in ("kv_a_proj_with_mqa.weight", "kv_b_proj.weight")):
        raise CheckpointError(f"{layer}self_attn: multi-head latent attention is not supported")
    if config.get("attn_output_gate", str(config.get("model_type", "")).startswith("qwen3_next")):
        raise CheckpointError(f"{layer}self_attn: gated attention is not supported")
    if f"{layer}mlp.gate.weight" in names:
        raise CheckpointError(f"{layer}mlp: a multi-token-prediction layer with experts is not supported")
