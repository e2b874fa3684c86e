"""The state-space block as ONNX nodes, for any tree of rows at once (STree).

With A = cumulative sums of dt * a along each row's own path (one product with the ancestors' matrix), the part of row j
in the output of its descendant r decays by exp(A_r - A_j), and that of the state before the tree by exp(A_r). So a tree
costs one masked product instead of a loop. The rows of earlier calls of the same tree come in as `past`; the state
after the last row, and what the host needs to compute the state after any other, go out.
"""

from __future__ import annotations

from edgedec.export.graph import FLOAT, Graph
from edgedec.export.layout import Layout
from edgedec.export.onnx.common import activation, ints, scalar
from edgedec.export.onnx.layout import CallInputs
from edgedec.export.onnx.recurrent import computed, convolved, give
from edgedec.spec import ModelSpec, Ssm

_HIDDEN = -1e9


def emit(g: Graph, layout: Layout, b: int, x: str, step: CallInputs) -> str:
    """f of block b: normed hidden state [1, rows, hidden] -> what is added to it."""
    spec, block, p = layout.spec, layout.spec.recurrent[b], f"blocks.{b}"
    assert isinstance(block, Ssm)
    projected = g.linear(x, f"{p}.in_proj", f"{p}.in_proj_bias" if block.proj_bias else None)
    z, xbc, dt = g.split(g.reshaped(projected, [-1, block.in_rows]), [block.inner_size, block.conv_dim, block.n_heads])
    dt = _steps(g, block, dt, p)
    past = g.input(f"past_xbc.{b}", FLOAT, ["past", block.conv_dim])
    mixed = convolved(g, block, b, g.node("Concat", [past, xbc], axis=0))
    mixed = activation(g, "silu", g.node("Add", [mixed, g.vector(f"{p}.conv_bias")]))
    past_dt = g.input(f"past_dt.{b}", FLOAT, ["past", block.n_heads])
    y, state = _scan(g, block, b, mixed, g.node("Concat", [past_dt, dt], axis=0))
    _give(g, block, b, {"xbc": xbc, "dt": dt, "mixed": mixed, "state_out": state})
    y = computed(g, past, y)
    y = _gated_norm(g, spec, block, y, z, p)
    return g.linear(
        g.reshaped(y, [1, -1, block.inner_size]), f"{p}.out_proj", f"{p}.out_proj_bias" if block.proj_bias else None
    )


def _steps(g: Graph, block: Ssm, dt: str, p: str) -> str:
    """How far each head goes in each row [n, n_heads]."""
    positive = g.node("Softplus", [g.node("Add", [dt, g.vector(f"{p}.dt_bias")])])
    return g.node("Clip", [positive, scalar(g, block.dt_min), scalar(g, block.dt_max)])


def _scan(g: Graph, block: Ssm, b: int, mixed: str, dt: str) -> tuple[str, str]:
    """mixed [n, conv_dim], dt [n, n_heads] -> y [n, inner_size], and the state after the last row."""
    groups, heads, dim, size = block.n_groups, block.n_heads, block.head_dim, block.state_size
    share, p = heads // groups, f"blocks.{b}"
    x, keys, queries = g.split(mixed, [block.inner_size, groups * size, groups * size])
    x = g.node("Transpose", [g.reshaped(x, [-1, heads, dim])], perm=[1, 0, 2])
    keys, queries = (g.node("Transpose", [g.reshaped(v, [-1, groups, size])], perm=[1, 0, 2]) for v in (keys, queries))
    reached, decay = _decays(g, dt, p)
    scores = g.node("MatMul", [queries, g.node("Transpose", [keys], perm=[0, 2, 1])])
    weights = g.node("Mul", [g.node("Unsqueeze", [scores, ints(g, 1)]), _grouped(g, decay, groups, share)])
    weights = _heads(g, weights, heads)
    steps = g.node("Unsqueeze", [g.node("Transpose", [dt], perm=[1, 0]), ints(g, 2)])
    given = g.node("Mul", [x, steps])
    start = g.input(f"state.{b}", FLOAT, [heads, dim, size])
    y = g.node("Add", [g.node("MatMul", [weights, given]), _from_start(g, block, queries, start, reached)])
    y = g.node("Add", [y, g.node("Mul", [x, g.reshaped(g.vector(f"{p}.d"), [heads, 1, 1])])])
    y = g.reshaped(g.node("Transpose", [y], perm=[1, 0, 2]), [-1, block.inner_size])
    return y, _last_state(g, block, keys, given, start, reached, decay)


def _decays(g: Graph, dt: str, p: str) -> tuple[str, str]:
    """The decays to each row from the state before the tree [heads, n, 1], and from every ancestor [heads, n, n]."""
    ancestors = g.input("ancestors", FLOAT, ["all", "all"])
    sums = g.node("MatMul", [ancestors, g.node("Mul", [dt, g.vector(f"{p}.a")])])
    sums = g.node("Transpose", [sums], perm=[1, 0])
    rows, columns = (g.node("Unsqueeze", [sums, ints(g, axis)]) for axis in (2, 1))
    seen = g.node("Greater", [ancestors, scalar(g, 0.5)])
    apart = g.node("Where", [seen, g.node("Sub", [rows, columns]), scalar(g, _HIDDEN)])
    return g.node("Exp", [rows]), g.node("Exp", [apart])


def _from_start(g: Graph, block: Ssm, queries: str, start: str, reached: str) -> str:
    """The contribution of the state before the tree to each row [heads, n, head_dim]."""
    groups, share, dim, size = block.n_groups, block.n_heads // block.n_groups, block.head_dim, block.state_size
    states = g.node("Transpose", [g.reshaped(start, [groups, share * dim, size])], perm=[0, 2, 1])
    found = g.reshaped(g.node("MatMul", [queries, states]), [groups, -1, share, dim])
    found = g.reshaped(g.node("Transpose", [found], perm=[0, 2, 1, 3]), [block.n_heads, -1, dim])
    return g.node("Mul", [found, reached])


def _last_state(g: Graph, block: Ssm, keys: str, given: str, start: str, reached: str, decay: str) -> str:
    """The state after the last row [heads, head_dim, state_size]."""
    groups, share, dim = block.n_groups, block.n_heads // block.n_groups, block.head_dim
    last, end = ints(g, -1), ints(g, 1 << 62)
    left = g.node("Slice", [reached, last, end, ints(g, 1)])
    weights = g.node("Transpose", [g.node("Slice", [decay, last, end, ints(g, 1)])], perm=[0, 2, 1])
    parts = g.node("Transpose", [g.node("Mul", [given, weights])], perm=[0, 2, 1])
    added = g.node("MatMul", [g.reshaped(parts, [groups, share * dim, -1]), keys])
    return g.node("Add", [g.node("Mul", [start, left]), g.reshaped(added, [block.n_heads, dim, block.state_size])])


def _gated_norm(g: Graph, spec: ModelSpec, block: Ssm, y: str, z: str, p: str) -> str:
    """y * silu(z) [n, inner_size], normed in `norm_groups` parts, if in any."""
    y = g.node("Mul", [y, activation(g, "silu", z)])
    if not block.norm_groups:
        return y
    parts = g.reshaped(y, [-1, block.norm_groups, block.inner_size // block.norm_groups])
    weight = g.reshaped(g.vector(f"{p}.gate_norm"), [block.norm_groups, -1])
    square = g.node("ReduceMean", [g.node("Mul", [parts, parts]), ints(g, -1)], keepdims=1)
    size = g.node("Sqrt", [g.node("Add", [square, scalar(g, spec.norm_eps)])])
    return g.node("Mul", [g.node("Div", [parts, size]), weight])


def _grouped(g: Graph, decay: str, groups: int, share: int) -> str:
    """[heads, n, n] -> [groups, share, n, n]."""
    n = g.node("Slice", [g.node("Shape", [decay]), ints(g, 1), ints(g, 3)])
    return g.node("Reshape", [decay, g.node("Concat", [ints(g, groups, share), n], axis=0)])


def _heads(g: Graph, weights: str, heads: int) -> str:
    """[groups, share, n, n] -> [heads, n, n]."""
    n = g.node("Slice", [g.node("Shape", [weights]), ints(g, 2), ints(g, 4)])
    return g.node("Reshape", [weights, g.node("Concat", [ints(g, heads), n], axis=0)])


def _give(g: Graph, block: Ssm, b: int, values: dict[str, str]) -> None:
    """The outputs from which the host computes the state after any row."""
    shapes: dict[str, list[int | str]] = {
        "xbc": ["rows", block.conv_dim],
        "dt": ["rows", block.n_heads],
        "mixed": ["all", block.conv_dim],
        "state_out": [block.n_heads, block.head_dim, block.state_size],
    }
    for name, value in values.items():
        give(g, f"{name}.{b}", value, shapes[name])
