"""Inputs of graph building: the model's facts and the layout of the weights file."""

from __future__ import annotations

from dataclasses import dataclass

from edgedec.export.graph import FLOAT, FLOAT16, INT8, UINT8
from edgedec.spec import Attention, ModelSpec
from edgedec.spec.newer import (
    CHOICE_BIAS,
    CLAMPED,
    EXPERT_BIAS,
    GATES,
    NO_GRAPHS,
    PLAIN_EXPERTS,
    RELU_ROUTER,
    SINK_LOGIT,
    SPARSEMIXER,
    newer,
)

Shape = list[int | str]
CACHE_TYPE = {"f32": FLOAT, "f16": FLOAT16, "int8": INT8, "int4": UINT8}


@dataclass(frozen=True)
class CallInputs:
    """The inputs of a call that attention blocks share. tree: masks and positions are inputs of the graph; otherwise
    rows are a chain after the cache and attention is causal by itself. batch: the first dim of hidden states and
    caches."""

    seqlens: str
    total: str
    kv: str
    tree: bool = True
    batch: int | str = 1


def unsupported(spec: ModelSpec) -> str | None:
    """Why ONNX Runtime cannot run the model, in one line; None if it can."""
    if lacking := [fact for fact in newer(spec) if fact in NO_GRAPHS]:
        return f"it has {', '.join(lacking)}"
    for block in spec.attention.values():
        if block.distances:
            return "its scores have a part by distance"
        if block.relative:
            return "it has disentangled attention"
        if block.head_dim % 16:
            return f"head_dim {block.head_dim} is not a multiple of 16"
        if block.rope is not None and len(spec.ropes[block.rope].inv_freq) % 8:
            rotated = 2 * len(spec.ropes[block.rope].inv_freq)
            return f"{rotated} of {block.head_dim} channels rotate, not a multiple of 16"
    return None


def whole_model_reason(spec: ModelSpec) -> str | None:
    """Why the model cannot be one graph for onnxruntime-genai, in one line; None if it can."""
    if spec.output is not None:
        return "it encodes texts"
    known = (GATES, SINK_LOGIT, EXPERT_BIAS, CLAMPED, CHOICE_BIAS, PLAIN_EXPERTS, SPARSEMIXER, RELU_ROUTER)
    others = [fact for fact in newer(spec) if fact in known]
    if others:
        return f"it has {', '.join(others)}"
    others = sorted(set(spec.kinds) - {"attention", "mlp"})
    if others:
        return f"it has {', '.join(others)} blocks"
    if spec.original_length:
        return f"its rope differs for texts of more than {spec.original_length} tokens"
    if spec.paired:
        return "its attention reads embeddings beside the state"
    if any(block.sinks for block in spec.attention.values()):
        return "a window with sinks needs a mask"
    if spec.entry is not None and spec.entry.positions:
        return "its learned positions are no input"
    if any(block.qk_norm_last for block in spec.attention.values()):
        return "norms of queries and keys after the rope need positions"
    if any(block.slopes for block in spec.attention.values()):
        return "ALiBi needs a mask"
    if len({_cache_shape(block) for block in spec.attention.values()}) != 1:
        return "its attention blocks differ in heads or dims"
    return unsupported(spec)


def _cache_shape(block: Attention) -> tuple[int, int, int]:
    return block.n_heads, block.n_kv_heads, block.head_dim
