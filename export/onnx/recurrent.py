"""What the graphs of recurrent blocks have in common: the inputs of earlier rows of a tree, and a short convolution
along each row's own path."""

from __future__ import annotations

from edgedec.export.graph import FLOAT, INT64, Graph
from edgedec.export.onnx.common import ints
from edgedec.spec import Stateful


def convolved(g: Graph, block: Stateful, b: int, inputs: str) -> str:
    """inputs [n, conv_dim] -> the convolution of each row's last inputs [n, conv_dim]."""
    size = block.conv_size
    before = g.input(f"conv.{b}", FLOAT, [size - 1, block.conv_dim])
    paths = g.input(f"paths.{size}", INT64, ["all", size])
    windows = g.node("Gather", [g.node("Concat", [before, inputs], axis=0), paths], axis=0)
    kernel = g.node("Transpose", [g.vector(f"blocks.{b}.conv")], perm=[1, 0])
    return g.node("ReduceSum", [g.node("Mul", [windows, kernel]), ints(g, 1)], keepdims=0)


def computed(g: Graph, past: str, values: str) -> str:
    """values [all, ...] of all rows of a tree -> those of the computed rows; past: the rows before them."""
    first = g.node("Slice", [g.node("Shape", [past]), ints(g, 0), ints(g, 1)])
    return g.node("Slice", [values, first, ints(g, 1 << 62), ints(g, 0)])


def give(g: Graph, name: str, value: str, shape: list[int | str]) -> None:
    """An output from which the host computes the state after any row (`runtimes/ort/recurrent.py`)."""
    g.output(g.node("Identity", [value], out=name), FLOAT, shape)
