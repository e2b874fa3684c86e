"""ONNX graphs as an attacker would write them, and bundles that hold one."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="hostile graphs are made with onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

HUGE = 1 << 40


def replace_file(nano: Path, folder: Path, name: str, content: bytes) -> Path:
    """A copy of the bundle `nano` in which one file has another content, with the right hash."""
    shutil.copytree(nano, folder)
    (folder / name).write_bytes(content)
    manifest = json.loads((folder / "edgedec.json").read_text("utf-8"))
    manifest["files"][name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (folder / "edgedec.json").write_text(json.dumps(manifest), "utf-8")
    return folder


def head_of(nano: Path) -> Any:
    """nano's Medusa head, to be made hostile."""
    return onnx.load(nano / "head_medusa.onnx")


def add_node(model: Any, op: str, inputs: Sequence[str] = ("hidden",), **attributes: Any) -> Any:
    model.graph.node.append(helper.make_node(op, list(inputs), [f"added{len(model.graph.node)}"], **attributes))
    return model


def tensor(name: str, dims: Sequence[int], raw: bytes = b"", **fields: Any) -> Any:
    """A tensor that says it has a shape, whatever it holds."""
    made = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=dims, **fields)
    if raw:
        made.raw_data = raw
    return made


def external(name: str, dims: Sequence[int], **entries: str) -> Any:
    """A tensor whose data is in another file."""
    made = tensor(name, dims, data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        made.external_data.add(key=key, value=value)
    return made


def body(op: str = "Sin", inner: Sequence[Any] = ()) -> Any:
    """The body of a Loop over one value."""
    value = helper.make_tensor_value_info
    nodes = [helper.make_node("Identity", ["go"], ["goes"]), *inner, helper.make_node(op, ["v"], ["w"])]
    inputs = [value("i", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), value("v", TensorProto.FLOAT, None)]
    return helper.make_graph(
        nodes, "body", inputs, [value("goes", TensorProto.BOOL, []), value("w", TensorProto.FLOAT, None)]
    )


def with_loop(model: Any, count: int | None, graph: Any = None, op: str = "Loop") -> Any:
    """The logits of a decoder go through a loop. count: of its runs; None: as many as the input says."""
    graph, name = graph or body(), "runs"
    if count is None:
        model.graph.node.append(helper.make_node("ReduceMax", ["input_ids"], [name], keepdims=0))
    else:
        model.graph.initializer.append(numpy_helper.from_array(np.array(count, np.int64), name))
    (last,) = (node for node in model.graph.node if "logits" in node.output)
    last.output[:] = ["looped"]
    model.graph.node.append(helper.make_node(op, [name, "", "looped"], ["logits"], body=graph))
    return model


def with_size(model: Any, size: int) -> Any:
    """The logits of a decoder get a sum of so many zeros added."""
    model.graph.initializer.append(numpy_helper.from_array(np.array([size], np.int64), "size"))
    (last,) = (node for node in model.graph.node if "logits" in node.output)
    last.output[:] = ["small"]
    # The size is a value of the run: no optimizer knows it.
    model.graph.node.extend(
        [
            helper.make_node("Shape", ["input_ids"], ["shape"]),
            helper.make_node("ReduceMin", ["shape"], ["one"], keepdims=1),
            helper.make_node("Mul", ["one", "size"], ["sized"]),
            helper.make_node("ConstantOfShape", ["sized"], ["zeros"]),
            helper.make_node("ReduceSum", ["zeros"], ["sum"], keepdims=0),
            helper.make_node("Add", ["small", "sum"], ["logits"]),
        ]
    )
    return model


def with_work(model: Any) -> Any:
    """A decoder whose logits take many minutes."""
    make = helper.make_node
    inner = [
        make("ReduceMax", ["v"], ["r"], keepdims=0),
        make("Mul", ["big", "r"], ["scaled"]),
        make("MatMul", ["scaled", "big"], ["product"]),
        make("ReduceSum", ["product"], ["s"], keepdims=0),
        make("Add", ["v", "s"], ["x"]),
    ]
    graph = body(inner=inner)
    graph.node[-1].input[:] = ["x"]
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((700, 700), np.float32), "big"))
    return with_loop(model, 60_000, graph)
