"""The gated delta rule as ONNX nodes: a loop that applies one row after another, in the order that the host gives.

Of a tree a row whose parent is not the row before it begins again with the state before the tree, and its path is
applied anew: `updates` are the rows in this order, `resets` is 1 where a path begins, `ends` has each row's last
update. So a row's state is made of the same operations however the text is cut into calls.
"""

from __future__ import annotations

import numpy as np

from edgedec.bundle.onnx_rules import MOST_RUNS
from edgedec.export.graph import BOOL, FLOAT, INT64, Graph
from edgedec.export.layout import Layout
from edgedec.export.onnx.common import activation, ints, norm, scalar
from edgedec.export.onnx.layout import CallInputs
from edgedec.export.onnx.recurrent import computed, convolved, give
from edgedec.spec import Delta


def emit(g: Graph, layout: Layout, b: int, x: str, step: CallInputs) -> str:
    """f of block b: normed hidden state [1, rows, hidden] -> what is added to it."""
    spec, block, p = layout.spec, layout.spec.recurrent[b], f"blocks.{b}"
    assert isinstance(block, Delta)
    projected = g.reshaped(g.linear(x, f"{p}.in_proj"), [-1, sum(block.sections)])
    vkq, z, beta, steps = g.split(projected, block.sections)
    if block.rank:
        z, steps = (_raised(g, part, f"{p}.{name}", block.rank) for part, name in ((z, "gate_up"), (steps, "decay_up")))
    rates = {"vkq": vkq, "beta": _beta(g, block, beta), "decay": _decay(g, block, steps, p)}
    past = {name: g.input(f"past_{name}.{b}", FLOAT, ["past", *_widths(block)[name]]) for name in rates}
    every = {name: g.node("Concat", [past[name], value], axis=0) for name, value in rates.items()}
    mixed = activation(g, "silu", convolved(g, block, b, every["vkq"]))
    y, state = _scan(g, block, b, mixed, every["beta"], every["decay"])
    for name, value in rates.items():
        give(g, f"{name}.{b}", value, ["rows", *_widths(block)[name]])
    give(g, f"mixed.{b}", mixed, ["all", block.conv_dim])
    give(g, f"state_out.{b}", state, [block.n_heads, block.head_dim, block.key_dim])
    y = computed(g, past["vkq"], y)
    y = norm(g, "rms", y, f"{p}.gate_norm", block.eps or spec.norm_eps)
    gate = activation(g, "silu", z) if block.gate == "silu" else g.node("Sigmoid", [z])
    y = g.node("Mul", [g.reshaped(y, [-1, block.inner_size]), gate])
    return g.linear(g.reshaped(y, [1, -1, block.inner_size]), f"{p}.out_proj")


def _widths(block: Delta) -> dict[str, list[int | str]]:
    """The shape of each input of a row."""
    return {"vkq": [block.conv_dim], "beta": [block.n_heads], "decay": [block.n_heads, block.decays // block.n_heads]}


def _raised(g: Graph, low: str, name: str, rank: int) -> str:
    """low [n, rank] times a second matrix."""
    up = g.linear(g.reshaped(low, [1, -1, rank]), name)
    return g.reshaped(up, [-1, g.tensors[name].shape[0]])


def _beta(g: Graph, block: Delta, beta: str) -> str:
    return g.node("Mul", [g.node("Sigmoid", [beta]), scalar(g, block.beta_scale)])


def _decay(g: Graph, block: Delta, steps: str, p: str) -> str:
    """How much of a state is kept [n, n_heads, 1 or key_dim]."""
    steps = g.node("Softplus", [g.node("Add", [steps, g.vector(f"{p}.dt_bias")])])
    steps = g.reshaped(steps, [-1, block.n_heads, block.decays // block.n_heads])
    return g.node("Exp", [g.node("Mul", [steps, g.reshaped(g.vector(f"{p}.a"), [block.n_heads, 1])])])


def _scan(g: Graph, block: Delta, b: int, mixed: str, beta: str, decay: str) -> tuple[str, str]:
    """y [n, n_heads, head_dim] of all rows, and the state after the last."""
    heads, dim, size = block.n_heads, block.head_dim, block.key_dim
    v, k, q = g.split(mixed, [block.inner_size, block.n_groups * size, block.n_groups * size])
    rows = {
        "values": g.reshaped(v, [-1, heads, dim, 1]),
        "keys": _unit(g, block, k, 1.0),
        "queries": _unit(g, block, q, size**-0.5),
        "beta": g.reshaped(beta, [-1, heads, 1, 1]),
        "decay": g.node("Unsqueeze", [decay, ints(g, 2)]),
    }
    start = g.input(f"state.{b}", FLOAT, [heads, dim, size])
    outputs = [f"scan.{b}.state", f"scan.{b}.y"]
    most = g.constant(np.array(MOST_RUNS, np.int64))
    last, y = g.nodes("Loop", [most, "", start], outputs, body=_body(g, block, b, rows, start).body())
    return g.node("Gather", [y, g.input("ends", INT64, ["all"])], axis=0), last


def _unit(g: Graph, block: Delta, x: str, scale: float) -> str:
    """Keys or queries [n, n_groups * key_dim] over their lengths, times `scale`: for each head
    [n, n_heads, 1, key_dim]."""
    x = g.reshaped(x, [-1, block.n_groups, 1, block.key_dim])
    square = g.node("ReduceSum", [g.node("Mul", [x, x]), ints(g, -1)], keepdims=1)
    x = g.node("Div", [x, g.node("Sqrt", [g.node("Add", [square, scalar(g, 1e-6)])])])
    x = x if scale == 1.0 else g.node("Mul", [x, scalar(g, scale)])
    share = block.n_heads // block.n_groups
    x = g.node("Tile", [x, ints(g, 1, 1, share, 1)])
    return g.reshaped(x, [-1, block.n_heads, 1, block.key_dim])


def _body(g: Graph, block: Delta, b: int, rows: dict[str, str], start: str) -> Graph:
    """One update: its number, whether it is run, and the state [n_heads, head_dim, key_dim] -> whether there is
    another, the state, y [n_heads, head_dim]. rows: the inputs of all rows; start: the state before the tree."""
    order, resets = g.input("updates", INT64, ["updates"]), g.input("resets", FLOAT, ["updates"])
    body, where = g.branch(f"scan.{b}"), f"scan.{b}.body"
    shape = [block.n_heads, block.head_dim, block.key_dim]
    number = body.input(f"{where}.number", INT64, [])
    body.input(f"{where}.runs", BOOL, [])
    state = body.input(f"{where}.state", FLOAT, [*shape])
    row = body.node("Gather", [order, number], axis=0)
    begins = body.node("Greater", [body.node("Gather", [resets, number], axis=0), scalar(body, 0.5)])
    values, keys, queries, beta, decay = (body.node("Gather", [each, row], axis=0) for each in rows.values())
    state = body.node("Mul", [body.node("Where", [begins, start, state]), decay])
    axis = ints(body, 2)
    known = body.node("ReduceSum", [body.node("Mul", [state, keys]), axis], keepdims=1)
    change = body.node("Mul", [body.node("Sub", [values, known]), beta])
    state = body.node("Add", [state, body.node("Mul", [change, keys])], out=f"{where}.after")
    y = body.node("ReduceSum", [body.node("Mul", [state, queries]), axis], keepdims=0, out=f"{where}.y")
    one = body.constant(np.array(1, np.int64))
    count = body.node("Squeeze", [body.node("Shape", [order])])
    more = body.node("Less", [body.node("Add", [number, one]), count], out=f"{where}.more")
    body.output(more, BOOL, [])
    body.output(state, FLOAT, [*shape])
    body.output(y, FLOAT, [*shape[:2]])
    return body
