"""`edgedec bench device` and the report of a GPU, on the emulation: that they run and count, not what they measure."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from edgedec.bench import device, device_report
from edgedec.cli import _app
from edgedec.kernels.cuda import emulated

pytestmark = pytest.mark.skipif(emulated.why_not() is not None, reason=f"emulation: {emulated.why_not()}")


@pytest.fixture(autouse=True)
def emulate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEDEC_CUDA", "emulated")


def run(*arguments: str) -> str:
    result = CliRunner().invoke(_app.app, ["bench", "device", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_steps_are_measured(nano):
    small = ("-m", str(nano), "--rows", "1,2", "--context", "8", "--prefill", "12", "-r", "1")
    found = json.loads(run(*small, "--json"))
    steps = [(step["what"], step["rows"]) for step in found["steps"]]
    assert steps == [("texts", 1), ("texts", 2), ("one text", 2), ("prefill", 12)]
    assert found["device"] == "emulated"
    assert found["weight_bytes"] > 2_000_000
    # Of 14 layers seven each; embedding, the head's two, strips and the best of them.
    assert found["steps"][0]["launches"] == 14 * 7 + 5
    assert all(step["seconds"] > 0 for step in found["steps"])


def test_the_report_is_whole(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(device_report, "_STORY", 3)
    out = tmp_path / "report.json"
    assert device_report.main(["--small", "--out", str(out)]) == 0
    found = json.loads(out.read_text("utf-8"))
    assert found == json.loads(capsys.readouterr().out)
    assert (found["wrong kernels"], found["failed"]) == ({}, {})
    assert found["correctness"]["64 rows as one by one"] is True
    assert found["correctness"]["story int8 as native"] is True
    assert found["correctness"]["h2o as native"] is True
    assert found["goals"].keys() <= device_report.GOALS.keys()
    assert "one row, ms" in found["goals"]
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_without_a_gpu_the_report_is_one_line(monkeypatch, capsys):
    monkeypatch.setenv("EDGEDEC_CUDA", "7")
    assert device_report.main(["--small"]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_part_that_fails_is_named_and_the_others_are_there(tmp_path, capsys, monkeypatch):
    """On the first machine with a GPU nobody can try again."""
    monkeypatch.setattr(device_report, "_STORY", 2)

    def fails(*_: object) -> object:
        raise OSError("GPU: running kernels: an illegal memory access (CUDA error 700)")

    monkeypatch.setattr(device_report, "story", fails)
    out = tmp_path / "report.json"
    assert device_report.main(["--small", "--out", str(out)]) == 1
    found = json.loads(out.read_text("utf-8"))
    assert found["failed"] == {"correctness": "GPU: running kernels: an illegal memory access (CUDA error 700)"}
    assert found["wrong kernels"] == {}
    assert "one row, ms" in found["goals"]


def test_goals_are_those_of_the_steps():
    def step(what: str, rows: int, seconds: float, share: float) -> device.StepCost:
        return device.StepCost(what, rows, 256, seconds, seconds, 100, 0.0, share)

    steps = [step("texts", 1, 3e-4, 0.7), step("texts", 8, 3.3e-4, 0.6), step("prefill", 4096, 0.1, 0.25)]
    found = device_report.goals(steps)
    assert found["one row, ms"] == {"goal": 0.35, "found": pytest.approx(0.3)}
    assert found["8 rows / 1 row"]["found"] == pytest.approx(1.1)
    assert found["prefill, share of int8 peak"]["found"] == 0.25


@pytest.mark.parametrize(
    ("name", "memory"), [("NVIDIA H100 80GB HBM3", 3.35e12), ("NVIDIA H200", 4.8e12), ("other", 0)]
)
def test_what_is_known_of_a_gpu(name, memory):
    assert device.rates(name)[0] == memory


def test_the_random_model_is_of_the_size_that_it_says():
    bundle = device_report.RandomBundle(device_report.llama_1b())
    shapes = bundle.spec.tensors()
    assert sum(shape[0] * (shape[1] if len(shape) > 1 else 1) for shape in shapes.values()) == pytest.approx(
        1.236e9, rel=1e-3
    )
    assert bundle.weight_bytes == pytest.approx(0.695e9, rel=0.01)
    assert device.multiplies(bundle.spec) == pytest.approx(0.973e9, rel=0.01)
