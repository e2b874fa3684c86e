"""The feed-forward block as ONNX nodes."""

from __future__ import annotations

from edgedec.export.graph import Graph
from edgedec.export.layout import Layout
from edgedec.export.onnx.common import activation, gated, norm, xielu
from edgedec.export.onnx.layout import CallInputs
from edgedec.spec import Mlp


def emit(g: Graph, layout: Layout, b: int, x: str, step: CallInputs) -> str:
    """f of block b: normed hidden state -> what is added to it."""
    block, p = layout.spec.blocks[b], f"blocks.{b}"
    assert isinstance(block, Mlp)
    y = g.linear(x, f"{p}.{block.up}", f"{p}.{block.up}_bias" if block.bias else None)
    if block.activation == "xielu":
        y = xielu(g, y, f"{p}.xielu")
    else:
        y = gated(g, block.activation, y, block.inner_size) if block.gated else activation(g, block.activation, y)
    y = norm(g, block.inner_norm, y, f"{p}.inner_norm", layout.spec.norm_eps)
    return g.linear(y, f"{p}.down", f"{p}.down_bias" if block.bias else None)
