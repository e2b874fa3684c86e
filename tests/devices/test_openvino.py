"""OpenVINO: through ONNX Runtime's provider on the CPU, and the graphs by its own front end, as an NPU's compiler reads
them. In an environment of its own, for onnxruntime-openvino takes the place of onnxruntime.

    python -m venv ov && ov/bin/pip install onnxruntime-openvino openvino onnx pytest && ov/bin/pip install .
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnx", reason="making artifacts needs onnx")

from edgedec.bundle import Bundle
from edgedec.bundle.manifest import Text
from edgedec.export.writer import Add, BundleWriter, Contents
from edgedec.runtime import DeviceName, open_runtime
from edgedec.runtimes.ort import providers
from edgedec.runtimes.ort.device_graphs import device_graphs_of
from edgedec.runtimes.ort.device_shapes import CallShape
from edgedec.testing.conformance import run_suite, suite
from edgedec.testing.conformance.bundles import random_weights
from edgedec.testing.conformance.models import MODELS


def test_the_provider_conforms(monkeypatch: pytest.MonkeyPatch) -> None:
    if why := providers.missing(DeviceName("openvino")):
        pytest.skip(why)
    monkeypatch.setattr(suite, "MODELS", {"plain": MODELS["plain"]})
    how = "openvino:CPU"
    report = run_suite(f"ort:{how}", lambda bundle, options: open_runtime("ort", bundle, replace(options, device=how)))
    assert [f"{f.model}: {f.check}: {f.message}" for f in report.failed] == []
    assert len({f.check for f in report.findings if f.state == "passed"}) >= 20


@pytest.mark.parametrize("weights", ["f32", "int8", "int4"])
def test_its_front_end_takes_the_graphs(weights: Any, tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino", reason="openvino is not installed")
    bundle = _plain_rows(tmp_path / "toy", weights)
    graphs, shape = device_graphs_of(bundle), CallShape(8, 64)
    for name in (graphs.head, *graphs.parts["f16"], *graphs.blocks["f16"][:2]):
        model = openvino.Core().read_model(str(bundle.file(name)))
        model.reshape({value.get_any_name(): _sizes(value, shape) for value in model.inputs})
        assert all(value.partial_shape.is_static for value in model.outputs)
        openvino.Core().compile_model(model, "CPU")


def _sizes(value: Any, shape: CallShape) -> list[int]:
    """The shape of an input: rows, or the slots before them, where it is free."""
    name, dims = value.get_any_name(), value.partial_shape
    free = [shape.past] if name.startswith("past") else [shape.rows, sum(shape)]
    return [dim.get_length() if dim.is_static else free.pop(0) for dim in dims]


def _plain_rows(folder: Path, weights: Any) -> Bundle:
    """A bundle of `--target portable`: OpenVINO takes quantized weights only as they are multiplied."""
    spec = MODELS["plain"]
    values = random_weights(spec)

    def fill(add: Add) -> dict[str, Any]:
        for name in spec.tensors():
            add(name, lambda start, stop, name=name: values[name][start:stop])  # type: ignore[misc]
        return {}

    folder.mkdir()
    formats = dict.fromkeys(("body", "head", "embed"), weights)
    contents = Contents("toy", spec, Text(None), formats, 32, ("f16",), layout="rows", runtimes=("devices",))
    BundleWriter(folder, contents).write(fill)
    return Bundle.open(folder)
