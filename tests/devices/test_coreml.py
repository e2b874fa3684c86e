"""Core ML without a Mac: operators of the graphs beside those that ONNX Runtime's provider lists, and coremltools'
front end, which checks types and shapes and builds the program that a Mac would compile. Nothing is run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.bundle import Bundle
from edgedec.testing.conformance.bundles import random_weights, write_bundle
from edgedec.testing.conformance.models import MODELS

onnx = pytest.importorskip("onnx")

SIZES = {"rows": 4, "past": 16, "total": 20}
# Those that the graphs use of ONNX Runtime's list (coreml_supported_mlprogram_ops.md, 2026).
LISTED = {
    *("Add", "Cast", "Clip", "Concat", "Div", "Gelu", "Identity", "LayerNormalization", "MatMul", "Mul", "ReduceMean"),
    *("Relu", "Reshape", "Sigmoid", "Slice", "Softmax", "Split", "Sqrt", "Sub", "Tanh", "Transpose"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Bundle]:
    def make(fmt: str) -> Bundle:
        spec = MODELS["plain"]
        return write_bundle(tmp_path_factory.mktemp("coreml") / fmt, spec, random_weights(spec), fmt, ("devices",))

    return make


def graphs(bundle: Bundle) -> list[Path]:
    """Those with caches of floats."""
    names = bundle.manifest.artifacts["devices"].files
    return [bundle.file(name) for name in names if name.startswith("device_") and ".int8." not in name]


def at_fixed_sizes(path: Path) -> Any:
    """A graph of static shapes, with RMS norms as what ONNX Runtime makes of them where a provider has none."""
    model = onnx.load(path)
    for value in [*model.graph.input, *model.graph.output]:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_value = SIZES[dim.dim_param]
    del model.graph.value_info[:]
    nodes = [made for node in model.graph.node for made in _plain(node, model.graph)]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def _plain(node: Any, graph: Any) -> list[Any]:
    if node.op_type != "SimplifiedLayerNormalization":
        return [node]
    out, make, array = node.output[0], onnx.helper.make_node, onnx.numpy_helper.from_array
    eps = next((a.f for a in node.attribute if a.name == "epsilon"), 1e-5)
    graph.initializer.extend([array(np.float32(eps), f"{out}_eps"), array(np.array([-1], np.int64), f"{out}_axes")])
    x, weight = node.input
    return [
        make("Mul", [x, x], [f"{out}_squares"]),
        make("ReduceMean", [f"{out}_squares", f"{out}_axes"], [f"{out}_mean"], keepdims=1),
        make("Add", [f"{out}_mean", f"{out}_eps"], [f"{out}_size"]),
        make("Sqrt", [f"{out}_size"], [f"{out}_root"]),
        make("Div", [x, f"{out}_root"], [f"{out}_normed"]),
        make("Mul", [f"{out}_normed", weight], [out]),
    ]


@pytest.mark.parametrize("fmt", ["f32", "f16"])
def test_every_operator_is_listed(made: Callable[[str], Bundle], fmt: str) -> None:
    found = graphs(made(fmt))
    assert len(found) > 6
    for path in found:
        model = at_fixed_sizes(path)
        assert {node.op_type for node in model.graph.node} <= LISTED, path.name
        assert all(node.domain in ("", "ai.onnx") for node in model.graph.node)


def test_packed_weights_are_not(made: Callable[[str], Bundle]) -> None:
    """As docs/devices.md says: a bundle of float weights is the one to try."""
    used = {node.op_type for path in graphs(made("int4")) for node in at_fixed_sizes(path).graph.node}
    assert used - LISTED == {"MatMulNBits"}


@pytest.mark.parametrize("fmt", ["f32", "f16"])
def test_coremltools_builds_the_program(made: Callable[[str], Bundle], fmt: str) -> None:
    convert = pytest.importorskip("onnx2coreml", reason="pip install onnx2coreml").convert
    parts = [path for path in graphs(made(fmt)) if path.name.startswith("device_part")]
    assert len(parts) == 2
    for path in parts:
        spec = convert(at_fixed_sizes(path), format="mlpackage", minimum_deployment_target="iOS17").get_spec()
        blocks = [b for f in spec.mlProgram.functions.values() for b in f.block_specializations.values()]
        kinds = [operation.type for block in blocks for operation in block.operations]
        assert kinds.count("softmax") == len(MODELS["plain"].attention)
        assert kinds.count("matmul") >= 2 * kinds.count("softmax")
