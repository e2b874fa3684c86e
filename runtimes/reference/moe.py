"""The mixture-of-experts block in numpy: each row through its own experts, one expert at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgedec.runtimes.reference.numeric import Array, BlockWeights, activation, rms_norm, sigmoid, softmax
from edgedec.spec import Moe
from edgedec.spec.moe import ALPHA, LIMIT


def run(block: Moe, w: BlockWeights, x: Array) -> Array:
    """f(norm(x)) [n, hidden] of x [n, hidden]."""
    routed = rms_norm(x, w.get("router_norm"), w.spec.norm_eps) if block.router_norm else None
    x = w.norm(x, block.norm)
    bias = w.get("router_bias") if block.router_bias else None
    logits = (x if routed is None else routed) @ w.get("router").T
    experts, weights = route(block, logits + w.get("router_logit_bias") if block.logit_bias else logits, bias)
    if block.expert_scale:
        weights = weights * w.get("expert_scale")[experts]
    y = np.zeros_like(x)
    for expert in np.unique(experts):
        rows, place = np.nonzero(experts == expert)
        y[rows] += weights[rows, place, None] * _expert(block, w, x[rows], int(expert))
    return y + _shared(block, w, x) if block.shared_size else y


def route(block: Moe, logits: Array, bias: Array | None = None) -> tuple[NDArray[np.int64], Array]:
    """logits [n, n_experts] -> the experts of each row [n, top_k] and their weights [n, top_k], the best first.

    logits 1 3 2, top_k 2, "softmax_topk" -> experts 1 2, weights softmax(3 2) = 0.73 0.27
    """
    weights = sigmoid(logits) if block.router == "sigmoid" else softmax(logits)
    ranked = weights + bias if bias is not None else logits if block.router != "sigmoid" else weights
    if block.groups > 1:
        ranked = in_best_groups(ranked, block.groups, block.top_groups)
    experts = np.argsort(-ranked, axis=1, kind="stable")[:, : block.top_k]
    chosen = np.take_along_axis(logits if block.router == "softmax_topk" else weights, experts, axis=1)
    if block.router == "softmax_topk":
        chosen = softmax(chosen)
    if block.normalize:
        chosen = chosen / chosen.sum(axis=1, keepdims=True)
    return experts, chosen * np.float32(block.scale)


def in_best_groups(scores: Array, groups: int, top: int) -> Array:
    """scores [n, n_experts], with -inf for the experts outside the `top` groups whose two best have the largest sum.

    scores 5 1 4 3, 2 groups, the best 1: 5 + 1 < 4 + 3 -> -inf -inf 4 3
    """
    grouped = scores.reshape(len(scores), groups, -1)
    sums = np.sort(grouped, axis=2)[:, :, -2:].sum(axis=2, dtype=np.float32)
    kept = np.zeros(sums.shape, bool)
    np.put_along_axis(kept, np.argsort(-sums, axis=1, kind="stable")[:, :top], True, axis=1)
    return np.where(kept[:, :, None], grouped, np.float32(-np.inf)).reshape(scores.shape)


def _expert(block: Moe, w: BlockWeights, x: Array, expert: int) -> Array:
    inner, hidden = block.inner_size, x.shape[1]
    up_rows, down_rows = (expert * 2 * inner, (expert + 1) * 2 * inner), (expert * hidden, (expert + 1) * hidden)
    gate_up = x @ w.get("gate_up", *up_rows).T
    if block.bias:
        gate_up = gate_up + w.get("gate_up_bias", *up_rows)
    gate, up = gate_up[:, :inner], gate_up[:, inner:]
    act = clamped(gate, up) if block.clamped else activation(gate, block.activation) * up
    w.watch("gate_up", expert, x)
    w.watch("down", expert, act)
    y = act @ w.get("down", *down_rows).T
    return y + w.get("down_bias", *down_rows) if block.bias else y


def clamped(gate: Array, up: Array) -> Array:
    """gate * sigmoid(ALPHA * gate) * (up + 1), both cut at LIMIT.

    gate 9, up -8 -> 7 * sigmoid(11.914) * (-7 + 1) = -41.9997
    """
    gate, up = np.minimum(gate, np.float32(LIMIT)), np.clip(up, np.float32(-LIMIT), np.float32(LIMIT))
    return gate * sigmoid(np.float32(ALPHA) * gate) * (up + np.float32(1))


def _shared(block: Moe, w: BlockWeights, x: Array) -> Array:
    gate, up = np.split(w.linear(x, "shared_gate_up"), 2, axis=1)
    y = w.linear(activation(gate, block.activation) * up, "shared_down")
    return sigmoid(x @ w.get("shared_gate").T) * y if block.shared_gate else y
