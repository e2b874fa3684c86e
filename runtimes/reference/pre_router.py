"""The pre-router in numpy (`spec.pre_router`): attention as of any block, over a stream of its own."""

from __future__ import annotations

import numpy as np

from edgedec.cache.host import HostCache
from edgedec.runtime import Rows, View
from edgedec.runtimes.reference import attention
from edgedec.runtimes.reference.numeric import Array, BlockWeights, activation
from edgedec.spec import PreRouter


def run(
    block: PreRouter,
    w: BlockWeights,
    x: Array,
    own: Array,
    rows: Rows,
    cache: HostCache,
    span: tuple[int, int],
    scales: Array | None,
    view: View | None = None,
) -> tuple[Array, Array, Array]:
    """Give the cache the expert of each computed row; returns what it adds to the state x, nothing, the attention paid
    to each slot and the queries, as attention does. own [count, size]: the tokens' rows of the table."""
    added, paid, queries = attention.run(block, w, own, None, rows, cache, span, scales, view)
    cache.experts.give(w.number, rows, logits_of(w, own + added).argmax(axis=1))
    return np.zeros_like(x), paid, queries


def logits_of(w: BlockWeights, x: Array) -> Array:
    """The stream [n, size] after attention -> the logits of the experts [n, n_experts]."""
    x = x + w.linear(activation(w.linear(w.norm(x, "rms", "up_norm"), "up", True), "silu"), "down", True)
    found: Array = w.norm(x, "rms", "out_norm") @ w.get("router").T + w.get("router_bias")
    return np.asarray(found)
