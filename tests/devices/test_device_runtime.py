"""The device runtime in all that does not need a device: which calls go through which graphs, in which shapes."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx", reason="making artifacts needs onnx")

from devices.on_cpu import on_cpu

import edgedec
from edgedec.bundle import Bundle
from edgedec.decoding.allocation import Offer, grant_alone
from edgedec.errors import BundleCorrupt, RuntimeUnavailable, UsageError
from edgedec.export.amend import add_artifact
from edgedec.export.layout import Layout
from edgedec.export.onnx.portable import part_starts
from edgedec.model import Model
from edgedec.runtime import ALL_LOGITS, Call, Outputs, Rows, RuntimeOptions, forward_one
from edgedec.runtimes.ort.device import DeviceRuntime
from edgedec.runtimes.ort.device_graphs import device_graphs_of
from edgedec.runtimes.ort.device_shapes import ROWS, CallShape, free_shape, lengths, static_shape
from edgedec.sampling import Sampling
from edgedec.speculation.costs import Costs
from edgedec.testing.conformance import run_suite, suite


@pytest.fixture(scope="module")
def told(nano: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """nano with the graphs for devices."""
    folder = tmp_path_factory.mktemp("devices") / "nano"
    shutil.copytree(nano, folder)
    return add_artifact(folder, "devices")


def run(model: Model, speculate: str, n: int = 48) -> tuple[str, int, edgedec.Session]:
    """A greedy text, how many tokens of it were drafted, and its session."""
    session = model.session(speculate=speculate)
    text = "".join(session.generate("The dog was", max_tokens=n, sampling=Sampling(temperature=0)))
    return text, session.stats.proposed, session


@pytest.mark.parametrize("static", [False, True], ids=["any shape", "buckets"])
def test_conforms(monkeypatch: pytest.MonkeyPatch, static: bool) -> None:
    models = ("plain", "options") if static else ("windows", "layer norms")
    monkeypatch.setattr(suite, "MODELS", {name: suite.MODELS[name] for name in models})
    report = run_suite("ort:dml", on_cpu(monkeypatch, static))
    assert [f"{f.model}: {f.check}: {f.message}" for f in report.failed] == []
    assert len({f.check for f in report.findings if f.state == "passed"}) >= 20


def test_kinds_that_devices_lack_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "MODELS", {name: suite.MODELS[name] for name in ("plain", "hybrid")})
    report = run_suite("ort:dml", on_cpu(monkeypatch, False))
    assert [f for f in report.findings if f.model == "hybrid" and f.state != "not declared"] == []


def test_shapes_are_the_next_bucket() -> None:
    assert lengths(1024) == (64, 256, 1024)
    assert lengths(64) == (64,)
    assert lengths(100) == (64, 100)
    assert static_shape(1, 0, 1024) == CallShape(1, 64)
    assert static_shape(5, 65, 1024) == CallShape(8, 256)
    assert static_shape(128, 1000, 1024) == CallShape(128, 1024)
    assert free_shape(5, 65) == CallShape(5, 128)
    assert free_shape(1, 0) == CallShape(1, 64)


def test_calls_open_one_session_a_bucket(told: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = on_cpu(monkeypatch, True)(told, RuntimeOptions())
    cache = runtime.new_cache(200)
    for n in (3, 1, 4, 2, 60, 1):
        forward_one(runtime, Call(Rows.chain([5] * n, cache.length), cache))
        cache.commit(range(n))
    shapes = [shape for _, shape in runtime._sessions._open if shape is not None]
    # 60 rows after 10, and one after 70: other buckets; 3, 4 and 2 rows share theirs.
    assert sorted(shapes) == [(1, 64), (1, 256), (4, 64), (128, 64)]


def test_rows_that_fill_a_bucket_are_free(told: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = on_cpu(monkeypatch, True)(told, RuntimeOptions())
    assert runtime.capabilities.row_buckets == ROWS
    costs = Costs({1: 1.0, 4: 1.1, 8: 2.2}, largest=128)
    # Three unlikely guesses cost a tenth, the fourth as much again as the call: three are granted.
    assert grant_alone(Offer([0.2, 0.19, 0.18, 0.17], 1, 0, costs), runtime.capabilities).nodes == 3


@pytest.mark.parametrize("kv", ["f32", "f16", "int8"])
def test_nano_tells_its_story(told: Bundle, monkeypatch: pytest.MonkeyPatch, kv: str) -> None:
    if kv == "int8" and kv not in told.manifest.kv_formats:
        pytest.skip("nano has no int8 scales")
    model = Model(told, on_cpu(monkeypatch, True)(told, RuntimeOptions(kv=kv)))
    text, _, plain = run(model, "off")
    assert text == run(edgedec.open(str(told.path), kv=kv), "off")[0]
    drafted_text, drafted, session = run(model, "copy+recycling:fixed=6")
    assert drafted > 0
    assert drafted_text == text
    slots = [each._context.cache.positions(0).tolist() for each in (plain, session)]
    assert slots[0] == slots[1]


def test_a_session_goes_on_on_the_cpu_and_back(told: Bundle, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = Model(told, on_cpu(monkeypatch, True)(told, RuntimeOptions(kv="f32")))
    _, _, session = run(model, "off", 20)
    session.save(tmp_path / "story.session")
    rest = list(session.tokens(max_tokens=12, sampling=Sampling(temperature=0)))
    for other in (model, edgedec.open(str(told.path), engine="ort", kv="f32")):
        loaded = other.session(speculate="off")
        loaded.load(tmp_path / "story.session")
        assert [int(t) for t in loaded.tokens(max_tokens=12, sampling=Sampling(temperature=0))] == [
            int(t) for t in rest
        ]


def test_the_stack_in_parts_is_the_stack(told: Bundle, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from edgedec.export.artifacts import devices

    most = 300_000
    assert len(part_starts(Layout.of(told.manifest), most)) > 2
    folder = tmp_path / "nano"
    shutil.copytree(told.path, folder)
    monkeypatch.setattr(devices, "MOST", most)
    cut = add_artifact(folder, "devices")
    assert len(device_graphs_of(cut).starts) > 2
    rows, opened = Rows.chain([1, 2, 3, 4, 5], 0), on_cpu(monkeypatch, True)
    found = []
    for bundle in (told, cut):
        runtime: DeviceRuntime = opened(bundle, RuntimeOptions(kv="f32"))
        last = runtime.spec.n_blocks - 1
        wanted = Outputs(logits=True, hidden=(0, last))
        found.append(forward_one(runtime, Call(rows, runtime.new_cache(8), outputs=wanted)))
    assert np.abs(found[0].logits - found[1].logits).max() < 1e-3
    assert found[1].hidden.keys() == {0, last}


def test_facts_that_do_not_fit_are_refused(told: Bundle, tmp_path: Path) -> None:
    import json

    folder = tmp_path / "nano"
    shutil.copytree(told.path, folder)
    path = folder / "edgedec.json"
    facts = json.loads(path.read_text())
    for wrong in ({"starts": []}, {"starts": [1]}, {"starts": [0, 0]}, {"head": "no.onnx"}, {"parts": {}}):
        broken = json.loads(json.dumps(facts))
        broken["artifacts"]["devices"]["facts"] |= wrong
        path.write_text(json.dumps(broken))
        with pytest.raises(BundleCorrupt, match="devices"):
            device_graphs_of(Bundle.open(folder))


def test_a_cache_of_another_format_is_refused(told: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = on_cpu(monkeypatch, False)
    cache = opened(told, RuntimeOptions(kv="f16")).new_cache(8)
    with pytest.raises(UsageError, match="another engine"):
        forward_one(opened(told, RuntimeOptions(kv="f32")), Call(Rows.chain([1], 0), cache, outputs=ALL_LOGITS))


def test_bundles_without_the_graphs_say_what_to_do(nano: Path) -> None:
    with pytest.raises(RuntimeUnavailable, match="edgedec add devices"):
        edgedec.open(str(nano), engine="ort", device="webgpu")
