"""What ONNX Runtime's own products do not have: the offsets of a matrix's blocks, and scales that have parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto

from edgedec.bundle.manifest import SUPER

if TYPE_CHECKING:
    from edgedec.export.graph import Graph


def of_product(g: Graph, x: str, name: str) -> str:
    """What a matrix's offsets add [rows, out] to its product with x [1, rows, in] or, of an expert, [rows, in]: they
    times the sums of the inputs of blocks."""
    tensor = g.tensors[name]
    short = tensor.blocks * tensor.block - tensor.shape[1]
    if short:
        x = g.reshaped(x, [-1, tensor.shape[1]])
        x = g.node("Pad", [x, g.constant(np.array([0, 0, 0, short], np.int64))])
    parts = g.reshaped(x, [-1, tensor.blocks, tensor.block])
    sums = g.node("ReduceSum", [parts, g.constant(np.array([-1], np.int64))], keepdims=0)
    return g.node("MatMul", [sums, g.node("Transpose", [g.halves(name, "offsets")], perm=[1, 0])])


def with_offsets(g: Graph, rows: str, ids: str, name: str) -> str:
    """Rows `ids` of a matrix [1, rows, width of whole blocks], with the offsets of their blocks."""
    tensor = g.tensors[name]
    if not tensor.offsets and not tensor.low_offsets:
        return rows
    offsets = g.node("Gather", [g.halves(name, "offsets"), ids])
    parts = g.reshaped(rows, [0, 0, tensor.blocks, tensor.block])
    last = g.constant(np.array([-1], np.int64))
    return g.reshaped(g.node("Add", [parts, g.node("Unsqueeze", [offsets, last])]), [0, 0, -1])


def whole_scales(g: Graph, name: str, what: str) -> str:
    """The scales or the offsets of blocks [out, blocks] whose scales have parts."""
    tensor = g.tensors[name]
    parts, halves = g.by_row(name, "parts", tensor.blocks), g.by_row(name, "scales", tensor.scale_count)
    scales = g.node("Cast", [halves], to=TensorProto.FLOAT)
    n, out = tensor.shape[0], f"{name}.{what}_f32"
    if tensor.low_offsets:
        scales, offsets = g.split(g.reshaped(scales, [n, -1, 2]), [1, 1])
        low = g.node("BitwiseAnd", [parts, g.constant(np.array(15, np.uint8))])
        high = g.node("BitShift", [parts, g.constant(np.array(4, np.uint8))], direction="RIGHT")
        scales, wide = (scales, low) if what == "scales" else (offsets, high)
        wide = g.node("Cast", [wide], to=TensorProto.FLOAT)
    else:
        # Of a byte that stands for an int8: with its highest bit flipped it is 128 more.
        flipped = g.node("BitwiseXor", [parts, g.constant(np.array(128, np.uint8))])
        more = g.node("Cast", [flipped], to=TensorProto.FLOAT)
        wide, scales = g.node("Sub", [more, g.constant(np.array(128, np.float32))]), g.reshaped(scales, [n, -1, 1])
    each = g.node("Mul", [g.reshaped(wide, [n, -1, SUPER // tensor.block]), scales])
    return g.node("Reshape", [each, g.constant(np.array([n, -1], np.int64))], out=out)
