"""SmallThinker: ReGLU experts whose router reads the state before attention, so that they are known while it runs;
layers with a window turn their heads, those that see all have no positions (arXiv:2507.20984)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader, finish, heads, require_usual, sizes, windows
from edgedec.models._names import ATTENTION, EXPERTS, Names, named
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.spec import Attention, ModelSpec, Moe

FACTS = ArchitectureFacts(IGNORED)
NAMES: Names = {
    "attention": ATTENTION,
    "moe": EXPERTS
    | {
        "router": ("block_sparse_moe.primary_router.weight",),
        "gate_up": ("block_sparse_moe.experts.*.gate.weight", "block_sparse_moe.experts.*.up.weight"),
        "down": ("block_sparse_moe.experts.*.down.weight",),
    },
}
# Of earlier configs; the published code has one form of each.
FIXED: dict[str, Any] = {
    **{"moe_enable_early_router": True, "norm_topk_prob": True, "use_qk_norm": False},
    **{"moe_enable_secondary_experts": False, "moe_num_secondary_experts": 0, "moe_secondary_expert_size": 0},
    "moe_shared_primary_experts": 0,
}
# The first two are written for vLLM, which has the window and its layers from there.
UNUSED = ("sliding_window", "sliding_window_pattern", "model_name", "dense_ffn_hidden_size")


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    require_usual(r, FIXED)
    for key in UNUSED:
        r.value(key, None)
    table = rope_table(r, 1e6)
    length = context_length(r, table, context)
    if not all(_layout(r, "moe_layer_layout", usual=True)):
        raise r.fail("moe_layer_layout", "has a layer without experts, which is not supported")
    slides = _layout(r, "sliding_window_layout", usual=False)
    spans = windows(r, slides, r.whole("sliding_window_size", 4096), length)
    attention = Attention(**heads(r, kv_heads=2, head_dim=128))
    softmax = r.flag("moe_primary_router_apply_softmax", False)
    moe = Moe(
        n_experts=r.whole("moe_num_primary_experts"),
        top_k=r.whole("moe_num_active_primary_experts"),
        inner_size=r.whole("moe_ffn_hidden_size"),
        router="softmax_topk" if softmax else "sigmoid",
        normalize=not softmax,
        activation="relu",
        early_router=True,
    )
    turned = zip(_layout(r, "rope_layout", usual=True), spans, strict=True)
    found = ModelSpec(
        **sizes(r, tied=True),
        context_length=length,
        layers=tuple((replace(attention, rope=0 if on else None, window=window), moe) for on, window in turned),
        ropes=(rope(r, table, attention.head_dim, length),),
    )
    return finish(r, found)


def _layout(r: ConfigReader, key: str, usual: bool) -> list[bool]:
    """Which layers have something, as a config says with a 0 or a 1 for each."""
    n = r.whole("num_hidden_layers")
    found = r.items(key, int)
    if found is not None and (len(found) != n or not set(found) <= {0, 1}):
        raise r.fail(key, f"must be a 0 or a 1 for each of {n} layers, found {found!r:.60}")
    return [usual] * n if found is None else [bool(one) for one in found]


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, NAMES)
