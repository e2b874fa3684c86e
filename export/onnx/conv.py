"""The gated short convolution as ONNX nodes, for any tree of rows at once."""

from __future__ import annotations

from edgedec.export.graph import FLOAT, Graph
from edgedec.export.layout import Layout
from edgedec.export.onnx.layout import CallInputs
from edgedec.export.onnx.recurrent import computed, convolved, give
from edgedec.spec import Conv


def emit(g: Graph, layout: Layout, b: int, x: str, step: CallInputs) -> str:
    """f of block b: normed hidden state [1, rows, hidden] -> what is added to it."""
    block, p = layout.spec.recurrent[b], f"blocks.{b}"
    assert isinstance(block, Conv)
    size = block.inner_size
    projected = g.linear(x, f"{p}.in_proj", f"{p}.in_proj_bias" if block.bias else None)
    before, gate, values = g.split(g.reshaped(projected, [-1, 3 * size]), [size, size, size])
    inputs = g.node("Mul", [before, values])
    past = g.input(f"past_inputs.{b}", FLOAT, ["past", size])
    y = computed(g, past, convolved(g, block, b, g.node("Concat", [past, inputs], axis=0)))
    if block.bias:
        y = g.node("Add", [y, g.vector(f"{p}.conv_bias")])
    give(g, f"inputs.{b}", inputs, ["rows", size])
    y = g.reshaped(g.node("Mul", [gate, y]), [1, -1, size])
    return g.linear(y, f"{p}.out_proj", f"{p}.out_proj_bias" if block.bias else None)
