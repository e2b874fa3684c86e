"""The offsets of a matrix's blocks in an ONNX graph, which ONNX Runtime's own products do not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from edgedec.export.graph import Graph


def of_product(g: Graph, x: str, name: str) -> str:
    """What a matrix's offsets add to its product with x [1, rows, in]: they times the sums of the inputs of blocks."""
    tensor = g.tensors[name]
    short = tensor.blocks * tensor.block - tensor.shape[1]
    if short:
        x = g.node("Pad", [x, g.constant(np.array([0] * 5 + [short], np.int64))])
    parts = g.reshaped(x, [0, 0, tensor.blocks, tensor.block])
    sums = g.node("ReduceSum", [parts, g.constant(np.array([-1], np.int64))], keepdims=0)
    return g.node("MatMul", [sums, g.node("Transpose", [g.halves(name, "offsets")], perm=[1, 0])])


def with_offsets(g: Graph, rows: str, ids: str, name: str) -> str:
    """Rows `ids` of a matrix [1, rows, width of whole blocks], with the offsets of their blocks."""
    tensor = g.tensors[name]
    if not tensor.offsets:
        return rows
    offsets = g.node("Gather", [g.halves(name, "offsets"), ids])
    parts = g.reshaped(rows, [0, 0, tensor.blocks, tensor.block])
    last = g.constant(np.array([-1], np.int64))
    return g.reshaped(g.node("Add", [parts, g.node("Unsqueeze", [offsets, last])]), [0, 0, -1])
