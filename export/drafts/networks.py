"""The dense networks of a draft as ONNX graphs that hold their weights themselves.

Matrices are float32, or int8 as everywhere in a bundle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from edgedec.bundle.folder import dequantize
from edgedec.errors import BundleCorrupt, UsageError
from edgedec.export.graph import FLOAT, INT64, MICROSOFT, Graph
from edgedec.export.quantize import quantize
from edgedec.export.safetensors import Array

_BLOCK = 32
_LARGEST = 2**31 - 2**20  # of a protobuf message


@dataclass(frozen=True)
class MergeWeights:
    """A `Merge` with its weights: matrix [out, sum of the inputs' widths], norms, bias and layers if there are any."""

    inputs: tuple[str, ...]
    matrix: Array | None
    norms: tuple[Array, ...] = ()
    bias: Array | None = None
    layers: tuple[LayerWeights, ...] = ()


@dataclass(frozen=True)
class LayerWeights:
    """A `Residual` with its weights."""

    matrix: Array
    bias: Array | None = None
    skip: Array | None = None
    skip_bias: Array | None = None


@dataclass(frozen=True)
class RungWeights:
    """A `Rung` with its weights; readout [vocab, hidden]."""

    layers: tuple[LayerWeights, ...]
    readout: Array
    bias: Array | None = None


@dataclass(frozen=True)
class VelocityWeights:
    """A `Velocity` with its weights: norms [hidden], state and residual [rank, hidden], out [hidden, rank]."""

    state_norm: Array
    state: Array
    out: Array
    residual_norm: Array | None = None
    residual: Array | None = None


class DenseGraph(Graph):
    """A graph of dense layers. eps: of norms; matrices: their format."""

    def __init__(self, name: str, eps: float, matrices: Literal["f32", "int8"]) -> None:
        super().__init__(name, "", {})
        self.eps, self.format = eps, matrices

    def held(self, array: NDArray[Any]) -> str:
        """A value that stands in the graph."""
        name = f"w{len(self._inits)}"
        self._inits[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name

    def dense(self, x: str, matrix: Array, bias: Array | None = None) -> str:
        """x [n, in] times the matrix (out, in), plus its bias."""
        if self.format == "f32":
            inputs = [x, self.held(matrix)] + ([] if bias is None else [self.held(bias)])
            return self.node("Gemm", inputs, transB=1)
        data, scales = quantize(matrix, "int8", _BLOCK)
        n, k = matrix.shape
        how = {"K": k, "N": n, "bits": 8, "block_size": _BLOCK, "accuracy_level": 4}
        inputs = [x, self.held(data), self.held(scales.astype(np.float32))]
        y = self.node("MatMulNBits", inputs, domain=MICROSOFT, **how)
        return y if bias is None else self.node("Add", [y, self.held(bias)])

    def normed(self, x: str, weight: Array) -> str:
        """x over its root mean square, times the weight."""
        return self.node(
            "SimplifiedLayerNormalization", [x, self.held(weight)], axis=-1, epsilon=self.eps, stash_type=1
        )

    def layer(self, x: str, weights: LayerWeights) -> str:
        """skip(x) + silu(matrix x + bias)"""
        y = self.node("QuickGelu", [self.dense(x, weights.matrix, weights.bias)], domain=MICROSOFT, alpha=1.0)
        kept = x if weights.skip is None else self.dense(x, weights.skip, weights.skip_bias)
        return self.node("Add", [kept, y])

    def guesses(self, x: str, rung: RungWeights, top: int) -> tuple[str, str]:
        """The likeliest tokens after x [n, in] and their log-probabilities [n, top]."""
        for weights in rung.layers:
            x = self.layer(x, weights)
        logprobs = self.node("LogSoftmax", [self.dense(x, rung.readout, rung.bias)], axis=-1)
        most = self.constant(np.array([top], np.int64))
        best, ids = self.nodes("TopK", [logprobs, most], [f"best{len(self._nodes)}", f"ids{len(self._nodes)}"])
        return ids, best

    def moved(self, p: str, before: str, now: str, weights: VelocityWeights) -> str:
        """The stream p [n, hidden] after a layer that made `now` of `before` ("": the first layer)."""
        x = self.dense(self.normed(now, weights.state_norm), weights.state)
        if weights.residual is not None and weights.residual_norm is not None:
            x = self.node("Add", [x, self.dense(self.normed(p, weights.residual_norm), weights.residual)])
        step = self.dense(self.node("QuickGelu", [x], domain=MICROSOFT, alpha=1.0), weights.out)
        if before:
            step = self.node("Add", [step, self.node("Sub", [now, before])])
        return self.node("Add", [p if before else now, step])

    def bytes(self, where: str) -> bytes:
        """The file."""
        held = sum(len(tensor.raw_data) for tensor in self._inits.values())
        if held > _LARGEST:
            raise UsageError(f"{where}: {held >> 20} MiB, an ONNX file holds 2047; use int8 (--draft-weights int8)")
        model: onnx.ModelProto = self.model()
        return model.SerializeToString()


def merge_graph(weights: MergeWeights, widths: Sequence[int], eps: float, matrices: Literal["f32", "int8"]) -> bytes:
    """The graph of a merge: inputs [n, width] by their names -> "state" [n, out]."""
    g = DenseGraph("merge", eps, matrices)
    parts = [g.input(name, FLOAT, ["n", width]) for name, width in zip(weights.inputs, widths, strict=True)]
    if weights.norms:
        parts = [g.normed(part, norm) for part, norm in zip(parts, weights.norms, strict=True)]
    x = g.node("Concat", parts, axis=-1) if len(parts) > 1 else parts[0]
    for layer in weights.layers:
        x = g.layer(x, layer)
    y = x if weights.matrix is None else g.dense(x, weights.matrix, weights.bias)
    g.node("Identity", [y], out="state")
    g.output("state", FLOAT, ["n", sum(widths) if weights.matrix is None else len(weights.matrix)])
    return g.bytes("the merge of a draft")


def velocity_graph(weights: Sequence[VelocityWeights], eps: float, matrices: Literal["f32", "int8"]) -> bytes:
    """The graph of a second residual stream: states after each layer, "layer_1" .. [n, hidden] -> "state"."""
    g, p, before = DenseGraph("velocity", eps, matrices), "", ""
    for i, one in enumerate(weights, 1):
        now = g.input(f"layer_{i}", FLOAT, ["n", one.state.shape[1]])
        p, before = g.moved(p, before, now, one), now
    g.node("Identity", [p], out="state")
    g.output("state", FLOAT, ["n", weights[-1].state.shape[1]])
    return g.bytes("the velocity adapters of a draft")


def rung_graph(rung: RungWeights, width: int, top: int, matrices: Literal["f32", "int8"]) -> bytes:
    """The graph of one depth: "x" [n, width] -> "ids", "logprobs" [n, top]."""
    g = DenseGraph("rung", 0.0, matrices)
    ids, best = g.guesses(g.input("x", FLOAT, ["n", width]), rung, top)
    for name, value, dtype in (("ids", ids, INT64), ("logprobs", best, FLOAT)):
        g.node("Identity", [value], out=name)
        g.output(name, dtype, ["n", top])
    return g.bytes("a head of a draft")


def merge_matrix(path: Path) -> tuple[tuple[str, ...], Array]:
    """The inputs and the matrix of a merge without norms and bias, as `merge_graph` wrote it."""
    try:
        graph = onnx.load(path).graph
        held = {init.name: numpy_helper.to_array(init) for init in graph.initializer}
        node = next(node for node in graph.node if node.op_type in ("Gemm", "MatMulNBits"))
        inputs = tuple(value.name for value in graph.input)
        if node.op_type == "Gemm":
            return inputs, held[node.input[1]]
        width = next(a.i for a in node.attribute if a.name == "K")
        return inputs, dequantize(held[node.input[1]], held[node.input[2]], "int8", width)
    except (OSError, KeyError, StopIteration) as error:
        raise BundleCorrupt(f"{path}: not a network of a draft ({error})") from None
