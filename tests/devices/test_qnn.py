"""Qualcomm's NPU on its simulator: toy models, for the simulator takes half a second a call.

python -m venv qnn && qnn/bin/pip install onnxruntime==1.31.1 onnxruntime-qnn==2.7.0 onnx pytest .
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

if find_spec("onnxruntime_qnn") is None:
    pytest.skip("onnxruntime-qnn is not installed", allow_module_level=True)
pytest.importorskip("onnx", reason="making artifacts needs onnx")

from edgedec.bundle import Bundle
from edgedec.errors import RuntimeUnavailable
from edgedec.export.amend import add_artifact
from edgedec.model import Model
from edgedec.runtime import DeviceName, Runtime, RuntimeOptions, open_runtime
from edgedec.runtimes.ort import providers, shipped
from edgedec.runtimes.ort.device_shapes import ROWS, CallShape, lengths
from edgedec.sampling import Sampling
from edgedec.spec import ModelSpec, Moe
from edgedec.testing.conformance import run_suite, suite
from edgedec.testing.conformance.bundles import random_weights, write_bundle
from edgedec.testing.conformance.models import MODELS

SOC = "qnn:SM8650"
TWO = replace(MODELS["plain"], layers=MODELS["plain"].layers[:2])


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGEDEC_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Two layers of int4 weights. Of random ones alone, the two best tokens are
    within rounding every few tokens. Here they are 3% of the logits' spread apart, or more, in 32 tokens."""
    weights = random_weights(TWO, 15)
    weights["head"] = weights["head"] + np.roll(weights["embed"], 7, axis=0)
    return write_bundle(tmp_path_factory.mktemp("toy") / "toy", TWO, weights, "int4", ("devices",))


def opened(bundle: Bundle, kv: str | None = None) -> Runtime:
    return open_runtime("ort", bundle, RuntimeOptions(device=SOC, kv=kv))


def text(runtime: Runtime, bundle: Bundle, speculate: str, n: int = 32) -> tuple[list[int], int]:
    session = Model(bundle, runtime).session(speculate=speculate)
    found = [int(t) for t in session.tokens([1, 2, 3, 4], max_tokens=n, sampling=Sampling(temperature=0))]
    return found, session.stats.proposed


def test_two_layers_conform(monkeypatch: pytest.MonkeyPatch) -> None:
    every = bool(os.environ.get("EDGEDEC_SLOW_TESTS"))
    monkeypatch.setattr(suite, "MODELS", MODELS if every else {"plain": TWO})
    report = run_suite(f"ort:{SOC}", lambda bundle, how: open_runtime("ort", bundle, replace(how, device=SOC)))
    assert [f"{f.model}: {f.check}: {f.message}" for f in report.failed] == []
    assert len({f.check for f in report.findings if f.state == "passed"}) >= 20


@pytest.mark.parametrize("kv", ["f16", "int8"])
def test_greedy_text_is_that_of_the_cpu(toy: Bundle, kv: str) -> None:
    runtime = opened(toy, kv)
    found, _ = text(runtime, toy, "off")
    expected, _ = text(open_runtime("reference", toy, RuntimeOptions(kv=kv)), toy, "off")
    assert len(found) == 32
    assert found == expected
    drafted, proposed = text(runtime, toy, "copy+recycling:fixed=6")
    assert proposed > 0
    assert drafted == found


def test_a_session_is_saved_and_goes_on(toy: Bundle, tmp_path: Path) -> None:
    model = Model(toy, opened(toy))
    session = model.session(speculate="off")
    greedy = Sampling(temperature=0)
    list(session.tokens([1, 2, 3, 4], max_tokens=8, sampling=greedy))
    session.save(tmp_path / "toy.session")
    rest = [int(t) for t in session.tokens(max_tokens=8, sampling=greedy)]
    again = Model(toy, opened(toy)).session(speculate="off")
    again.load(tmp_path / "toy.session")
    assert [int(t) for t in again.tokens(max_tokens=8, sampling=greedy)] == rest


def test_compiled_graphs_are_kept(toy: Bundle) -> None:
    first, again = opened(toy, "f16"), opened(toy, "f16")
    assert text(first, toy, "off", 4) == text(again, toy, "off", 4)
    assert again._sessions._contexts.compiled == 0  # type: ignore[attr-defined]
    other = open_runtime("ort", toy, RuntimeOptions(device="qnn:SM8550", kv="f16"))
    other.load()
    assert other._sessions._contexts.compiled == 1  # type: ignore[attr-defined]


def test_what_cannot_be_placed_is_named(toy: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnx
    import onnxruntime as ort

    path = tmp_path / "graph.onnx"
    make = onnx.helper
    values = [make.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 4]) for name in ("x", "y")]
    nodes = [make.make_node("Relu", ["x"], ["r"], name="fine"), make.make_node("Det", ["s"], ["d"], name="left")]
    nodes.insert(1, make.make_node("Einsum", ["r", "r"], ["s"], name="also_left", equation="ab,ac->bc"))
    nodes.append(make.make_node("Add", ["r", "d"], ["y"], name="sum"))
    graph = make.make_graph(nodes, "graph", values[:1], values[1:])
    onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=10), path)
    with pytest.raises(
        RuntimeUnavailable, match=r"device qnn:SM8650 cannot compute \d of \d nodes of graph.onnx: .*Det \(left\)"
    ):
        providers.Placed(DeviceName("qnn", "SM8650")).open(str(path), ort.SessionOptions())


def test_a_soc_gets_its_contexts_in_the_bundle(tmp_path: Path) -> None:
    spec: ModelSpec = replace(TWO, context_length=64)
    bundle = write_bundle(tmp_path / "toy", spec, random_weights(spec), "int4", ("devices",))
    found = add_artifact(bundle.path, SOC)
    found = add_artifact(found.path, "qnn:SM8550")
    found = add_artifact(found.path, "ort")
    found.verify()
    assert {"devices", "ort", SOC, "qnn:SM8550"} <= set(found.manifest.artifacts)
    shapes = [CallShape(rows, past) for past in lengths(64) for rows in ROWS if rows <= 64]
    for name in (SOC, "qnn:SM8550"):
        contexts = shipped.contexts_of(found, name)
        assert set(contexts.models) == {shipped.key("device_part_00.f16.onnx", shape) for shape in shapes}
        assert len(contexts.binaries) == 1, "the buckets of a part do not share a binary"
    assert text(opened(found), found, "off", 3)[0]


def test_experts_are_refused_by_name(tmp_path: Path) -> None:
    spec = MODELS["experts"]
    assert any(isinstance(block, Moe) for block in spec.blocks)
    bundle = write_bundle(tmp_path / "experts", spec, random_weights(spec), "f32", ())
    with pytest.raises(RuntimeUnavailable, match="moe"):
        opened(bundle)
