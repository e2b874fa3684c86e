"""The mixture-of-experts block in numpy: each row through its own experts, one expert at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgedec.runtimes.reference.numeric import Array, BlockWeights, activation, rms_norm, sigmoid, softmax
from edgedec.spec import Moe
from edgedec.spec.moe import ALPHA, LIMIT, level_name


def run(
    block: Moe, w: BlockWeights, x: Array, given: NDArray[np.int64] | None = None, before: Array | None = None
) -> Array:
    """f(norm(x)) [n, hidden] of x [n, hidden]; given [n]: the rows' experts, where another block chooses them; before
    [n, hidden]: the state that an early router reads."""
    experts, weights = experts_of(block, w, before if block.early_router and before is not None else x, given)
    x = w.norm(x, block.norm)
    if block.expert_scale:
        weights = weights * w.get("expert_scale")[experts]
    y = np.zeros_like(x)
    for expert in np.unique(experts[experts >= 0]):
        rows, place = np.nonzero(experts == expert)
        y[rows] += weights[rows, place, None] * through_expert(block, w, x[rows], int(expert))
    y = y + _shared(block, w, x) if block.shared_size else y
    return y + w.get("sum_bias") if block.sum_bias else y


def experts_of(
    block: Moe, w: BlockWeights, x: Array, given: NDArray[np.int64] | None = None
) -> tuple[NDArray[np.int64], Array]:
    """As `route`: of the state that the router reads [n, hidden], by whatever router, or as they are given."""
    if given is not None:
        return given[:, None], np.ones((len(given), 1), np.float32)
    read, logits = read_by_router(block, w, x)
    if block.router == "relu":
        return rectified(block, logits, w.get("score_norm"), w.spec.norm_eps)
    return route(block, logits, w.get("router_bias") if block.router_bias else None, read)


def read_by_router(block: Moe, w: BlockWeights, x: Array) -> tuple[Array, Array]:
    """What the router reads of the state [n, hidden], and its logits [n, n_experts]."""
    own = rms_norm(x, w.get("router_norm"), w.spec.norm_eps) if block.router_norm else None
    read = own if own is not None else x if block.early_router else w.norm(x, block.norm)
    logits = read @ w.get("router").T
    return read, logits + w.get("router_logit_bias") if block.logit_bias else logits


def route(
    block: Moe, logits: Array, bias: Array | None = None, x: Array | None = None
) -> tuple[NDArray[np.int64], Array]:
    """logits [n, n_experts] -> the experts of each row [n, top_k], -1 for one that it leaves out, and their weights
    [n, top_k], the best first; x [n, hidden]: what the router has read.

    logits 1 3 2, top_k 2, "softmax_topk" -> experts 1 2, weights softmax(3 2) = 0.73 0.27
    """
    experts, chosen = sparse_mixed(block, logits) if block.router == "sparsemixer" else ranked(block, logits, bias)
    out = np.zeros(len(experts), bool) if x is None else left_out(block, chosen, x)
    experts[out, -1], chosen[out, -1] = -1, 0
    if block.normalize or block.router == "softmax_topk":
        again = np.full(len(out), block.normalize) | out
        chosen = np.where(again[:, None], chosen / chosen.sum(axis=1, keepdims=True), chosen)
    return experts, chosen * np.float32(block.scale)


def left_out(block: Moe, weights: Array, x: Array) -> NDArray[np.bool_]:
    """Which rows leave out their last expert [n], of weights [n, top_k] and what the router reads [n, hidden].

    drop_below 0.5, protect_from 9, weights 0.6 0.2, 0.6 0.4, 0.6 0.2, sizes that sum to 1 1 9 -> the first alone
    """
    found = weights[:, -1] < np.float32(block.drop_below) * weights[:, 0]
    if block.protect_from:
        found &= np.abs(x).sum(axis=1) < np.float32(block.protect_from)
    return np.asarray(found)


def ranked(block: Moe, logits: Array, bias: Array | None = None) -> tuple[NDArray[np.int64], Array]:
    """As `route`, of routers but SparseMixer: weights before they are normalized and scaled."""
    weights = sigmoid(logits) if block.router == "sigmoid" else softmax(logits)
    by_logits = block.router != "sigmoid" or block.early_router
    order = weights + bias if bias is not None else logits if by_logits else weights
    if block.groups > 1:
        order = in_best_groups(order, block.groups, block.top_groups)
    experts = np.argsort(-order, axis=1, kind="stable")[:, : block.top_k]
    chosen = np.take_along_axis(logits if block.router == "softmax_topk" else weights, experts, axis=1)
    return experts, softmax(chosen) if block.router == "softmax_topk" else chosen


def rectified(block: Moe, logits: Array, norm: Array, eps: float) -> tuple[NDArray[np.int64], Array]:
    """As `route`: the experts in order, -1 for those that a row does not pass, and their weights.

    logits 3 -1 4, norm 1 1 1 -> experts 0 -1 2, weights 3 0 4 / sqrt((9 + 16) / 3) = 1.04 0 1.39
    """
    weights = rms_norm(np.maximum(logits, np.float32(0)), norm, eps) * np.float32(block.scale)
    return np.where(weights != 0, np.arange(block.n_experts), -1), weights


def sparse_mixed(block: Moe, logits: Array) -> tuple[NDArray[np.int64], Array]:
    """As `ranked`: the largest logits, each weighed by softmax among those not chosen before that are near it.

    logits 1 2 1.9, top_k 2, jitter 0.1 -> experts 1 2, weights softmax(2 1.9)[0] = 0.52 and 1, for 1 is too far below
    """
    experts = np.argsort(-logits, axis=1, kind="stable")[:, : block.top_k]
    left, weights, twice = logits.copy(), np.empty(experts.shape, np.float32), np.float32(2 * block.jitter)
    for j in range(block.top_k):
        mine = experts[:, j : j + 1]
        best = np.take_along_axis(logits, mine, axis=1)
        near = best - logits <= twice * np.maximum(np.abs(logits), best)
        shares = softmax(np.where(near, left, np.float32(-np.inf)))
        weights[:, j] = np.take_along_axis(shares, mine, axis=1)[:, 0]
        np.put_along_axis(left, mine, -np.inf, axis=1)
    return experts, weights


def in_best_groups(scores: Array, groups: int, top: int) -> Array:
    """scores [n, n_experts], with -inf for the experts outside the `top` groups whose two best have the largest sum.

    scores 5 1 4 3, 2 groups, the best 1: 5 + 1 < 4 + 3 -> -inf -inf 4 3
    """
    grouped = scores.reshape(len(scores), groups, -1)
    sums = np.sort(grouped, axis=2)[:, :, -2:].sum(axis=2, dtype=np.float32)
    kept = np.zeros(sums.shape, bool)
    np.put_along_axis(kept, np.argsort(-sums, axis=1, kind="stable")[:, :top], True, axis=1)
    return np.where(kept[:, :, None], grouped, np.float32(-np.inf)).reshape(scores.shape)


def through_expert(block: Moe, w: BlockWeights, x: Array, expert: int) -> Array:
    """One expert of rows that are normed already [n, hidden]."""
    inner, hidden, both, (level, at) = block.inner_size, x.shape[1], block.up_rows, block.place(expert)
    up = x @ w.get(level_name(block.up, level), at * both, (at + 1) * both).T
    if block.bias:
        up = up + w.get(f"{block.up}_bias", expert * both, (expert + 1) * both)
    act = clamped(up[:, :inner], up[:, inner:]) if block.clamped else _activated(block, up)
    w.watch(block.up, expert, x)
    w.watch("down", expert, act)
    y = act @ w.get(level_name("down", level), at * hidden, (at + 1) * hidden).T
    return y + w.get("down_bias", expert * hidden, (expert + 1) * hidden) if block.bias else y


def _activated(block: Moe, up: Array) -> Array:
    """What the last matrix reads, of gates beside ups or of ups alone."""
    if not block.gated:
        return activation(up, block.activation)
    gate, up = np.split(up, 2, axis=1)
    return activation(gate, block.activation) * up


def clamped(gate: Array, up: Array) -> Array:
    """gate * sigmoid(ALPHA * gate) * (up + 1), both cut at LIMIT.

    gate 9, up -8 -> 7 * sigmoid(11.914) * (-7 + 1) = -41.9997
    """
    gate, up = np.minimum(gate, np.float32(LIMIT)), np.clip(up, np.float32(-LIMIT), np.float32(LIMIT))
    return gate * sigmoid(np.float32(ALPHA) * gate) * (up + np.float32(1))


def _shared(block: Moe, w: BlockWeights, x: Array) -> Array:
    y = w.linear(_activated(block, w.linear(x, block.shared_up)), "shared_down")
    return sigmoid(x @ w.get("shared_gate").T) * y if block.shared_gate else y
