"""The mixture-of-experts block as ONNX nodes: each expert stands in an `If`, so that only chosen ones are read.

An expert runs on the rows routed to it; its output is scattered to these rows.
"""

from __future__ import annotations

import numpy as np

from edgedec.export.graph import BOOL, FLOAT, INT32, Graph
from edgedec.export.layout import Layout
from edgedec.export.onnx.common import activation, clamped, filled, gated, ints, norm, scalar
from edgedec.export.onnx.layout import CallInputs
from edgedec.spec import Moe


def emit(g: Graph, layout: Layout, b: int, x: str, step: CallInputs) -> str:
    """f of block b: normed hidden state [1, rows, hidden] -> what is added to it."""
    block, p, hidden = layout.spec.blocks[b], f"blocks.{b}", layout.spec.hidden_size
    assert isinstance(block, Moe)
    rows = g.node("Reshape", [x, ints(g, -1, hidden)], out=f"{p}.rows")
    logits = g.linear(rows, f"{p}.router", f"{p}.router_logit_bias" if block.logit_bias else None)
    if block.router == "relu":
        chosen, dense = _rectified(g, block, logits, p, layout.spec.norm_eps)
    else:
        experts, weights = _route(g, block, logits, p)
        chosen, dense = _tables(g, logits, experts, weights, p)
    y = _shared(g, block, rows, p) if block.shared_size else filled(g, rows, 0.0)
    y = _experts(g, block, hidden, p, chosen, dense, y)
    if block.sum_bias:
        y = g.node("Add", [y, g.vector(f"{p}.sum_bias")])
    return g.reshaped(y, [1, -1, hidden])


def _route(g: Graph, block: Moe, logits: str, p: str) -> tuple[str, str]:
    """logits [n, experts] -> the experts of each row [n, k], the best first, and their weights [n, k]."""
    if block.router == "sparsemixer":
        return _sparse_mixed(g, block, logits, p)
    weights = g.node("Sigmoid", [logits]) if block.router == "sigmoid" else g.node("Softmax", [logits], axis=-1)
    ranked = logits if block.router != "sigmoid" else weights
    if block.router_bias:
        ranked = g.node("Add", [weights, g.vector(f"{p}.router_bias")])
    if block.groups > 1:
        ranked = _in_best_groups(g, block, ranked)
    _, experts = g.nodes("TopK", [ranked, ints(g, block.top_k)], [f"{p}.best", f"{p}.experts"], axis=-1)
    source = logits if block.router == "softmax_topk" else weights
    chosen = g.node("GatherElements", [source, experts], axis=-1)
    if block.router == "softmax_topk":
        chosen = g.node("Softmax", [chosen], axis=-1)
    return experts, _scaled(g, block, chosen)


def _scaled(g: Graph, block: Moe, chosen: str) -> str:
    """The weights of the chosen experts as they multiply outputs."""
    if block.normalize:
        chosen = g.node("Div", [chosen, g.node("ReduceSum", [chosen, ints(g, -1)], keepdims=1)])
    return chosen if block.scale == 1.0 else g.node("Mul", [chosen, scalar(g, block.scale)])


def _sparse_mixed(g: Graph, block: Moe, logits: str, p: str) -> tuple[str, str]:
    """As `_route`: the largest logits, each weighed by softmax among those not chosen before that are near it."""
    best, experts = g.nodes("TopK", [logits, ints(g, block.top_k)], [f"{p}.best", f"{p}.experts"], axis=-1)
    left, size, weights = logits, g.node("Abs", [logits]), list[str]()
    for value, mine in zip(*(g.split(found, [1] * block.top_k) for found in (best, experts)), strict=True):
        limit = g.node("Mul", [g.node("Max", [size, value]), scalar(g, 2 * block.jitter)])
        far = g.node("Greater", [g.node("Sub", [value, logits]), limit])
        shares = g.node("Softmax", [g.node("Where", [far, scalar(g, -np.inf), left])], axis=-1)
        weights.append(g.node("GatherElements", [shares, mine], axis=-1))
        left = g.node("ScatterElements", [left, mine, filled(g, value, -np.inf)], axis=-1)
    return experts, _scaled(g, block, g.node("Concat", weights, axis=-1))


def _rectified(g: Graph, block: Moe, logits: str, p: str, eps: float) -> tuple[str, str]:
    """As `_tables`: every expert is weighed by its normed score, and chosen if that is not zero."""
    weights = norm(g, "rms", g.node("Relu", [logits]), f"{p}.score_norm", eps)
    weights = weights if block.scale == 1.0 else g.node("Mul", [weights, scalar(g, block.scale)])
    dense = g.node("Transpose", [weights], perm=[1, 0], out=f"{p}.weights")
    nothing = g.node("Equal", [dense, scalar(g, 0.0)])
    return g.node("Cast", [g.node("Not", [nothing])], to=INT32, out=f"{p}.chosen_int"), dense


def _in_best_groups(g: Graph, block: Moe, scores: str) -> str:
    """scores [n, experts], with -inf for those outside the `top_groups` groups whose two best have the largest sum."""
    grouped = g.reshaped(scores, [-1, block.groups, block.n_experts // block.groups])
    best, _ = g.nodes("TopK", [grouped, ints(g, 2)], [f"{scores}.two", f"{scores}.places"], axis=-1)
    sums = g.node("ReduceSum", [best, ints(g, -1)], keepdims=0)
    values, chosen = g.nodes("TopK", [sums, ints(g, block.top_groups)], [f"{scores}.sums", f"{scores}.groups"], axis=-1)
    kept = g.node("ScatterElements", [filled(g, sums, 0.0), chosen, filled(g, values, 1.0)], axis=-1)
    kept = g.node("Unsqueeze", [g.node("Cast", [kept], to=BOOL), ints(g, -1)])
    return g.reshaped(g.node("Where", [kept, grouped, scalar(g, -np.inf)]), [-1, block.n_experts])


def _tables(g: Graph, logits: str, experts: str, weights: str, p: str) -> tuple[str, str]:
    """By expert and row [experts, n]: was it chosen (int32), and with which weight."""
    nothing, found = filled(g, logits, 0.0), []
    for name, values in (("chosen", filled(g, weights, 1.0)), ("weights", weights)):
        table = g.node("ScatterElements", [nothing, experts, values], axis=-1)
        found.append(g.node("Transpose", [table], perm=[1, 0], out=f"{p}.{name}"))
    return g.node("Cast", [found[0]], to=INT32, out=f"{p}.chosen_int"), found[1]


def _experts(g: Graph, block: Moe, hidden: int, p: str, chosen: str, dense: str, y: str) -> str:
    """y [n, hidden] plus what every chosen expert adds to the rows that chose it."""
    used = g.node("Cast", [g.node("ReduceMax", [chosen, ints(g, 1)], keepdims=0)], to=BOOL)
    flags = [f"{p}.uses.{e}" for e in range(block.n_experts)]
    g.nodes("Split", [used, g.constant(np.ones(block.n_experts, np.int64))], flags, axis=0)
    for e, flag in enumerate(flags):
        then, otherwise = g.branch(f"{p}.expert.{e}"), g.branch(f"{p}.without.{e}")
        _expert(then, block, hidden, p, e, (chosen, dense), y)
        otherwise.output(otherwise.node("Identity", [y]), FLOAT, ["n", hidden])
        y = g.choose(flag, then, otherwise)
    return y


def _expert(g: Graph, block: Moe, hidden: int, p: str, e: int, tables: tuple[str, str], y: str) -> None:
    """The branch of one expert: its part added to y."""
    number, inner = g.constant(np.array(e, np.int64)), block.inner_size
    ups, downs = (e * block.up_rows, (e + 1) * block.up_rows), (e * hidden, (e + 1) * hidden)
    up_bias, down_bias = (
        g.part(f"{p}.{name}", *span) if block.bias else None
        for name, span in ((f"{block.up}_bias", ups), ("down_bias", downs))
    )
    mine, weights = (g.node("Gather", [table, number], axis=0) for table in tables)
    places = g.reshaped(g.node("NonZero", [mine]), [-1])
    rows = g.node("Gather", [f"{p}.rows", places], axis=0)
    up = g.linear(rows, g.part(f"{p}.{block.up}", *ups), up_bias)
    act = clamped(g, up, inner) if block.clamped else _activated(g, block, up, inner)
    out = g.linear(act, g.part(f"{p}.down", *downs), down_bias)
    weight = g.reshaped(g.node("Gather", [weights, places]), [-1, 1])
    out = g.node("Mul", [out, weight])
    added = g.node("ScatterND", [y, g.reshaped(places, [-1, 1]), out], reduction="add")
    g.output(added, FLOAT, ["n", hidden])


def _activated(g: Graph, block: Moe, up: str, inner: int) -> str:
    """What the last matrix reads, of gates beside ups or of ups alone."""
    return gated(g, block.activation, up, inner) if block.gated else activation(g, block.activation, up)


def _shared(g: Graph, block: Moe, rows: str, p: str) -> str:
    """What the expert that every row passes adds [n, hidden]."""
    up = g.linear(rows, f"{p}.{block.shared_up}")
    y = g.linear(_activated(g, block, up, block.shared_size), f"{p}.shared_down")
    if not block.shared_gate:
        return y
    return g.node("Mul", [g.node("Sigmoid", [g.linear(rows, f"{p}.shared_gate")]), y])
