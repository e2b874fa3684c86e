"""`--device cuda`: which GPU, which engine, in every command that opens a model."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from serving import started
from typer.testing import CliRunner

import edgedec
from edgedec.bundle import Bundle
from edgedec.bundle.locate import find
from edgedec.cli import _app
from edgedec.errors import RuntimeUnavailable, UsageError
from edgedec.kernels.cuda import driver, emulated
from edgedec.runtime import RuntimeOptions
from edgedec.runtimes.cuda import open_device

pytestmark = pytest.mark.skipif(emulated.why_not() is not None, reason=f"emulation: {emulated.why_not()}")


@pytest.fixture(autouse=True)
def emulate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEDEC_CUDA", "emulated")


def test_a_device_picks_its_engine() -> None:
    model = edgedec.open("nano", device="cuda:1")
    assert (model.runtime.name, model.runtime.capabilities.device) == ("cuda", "emulated")
    with pytest.raises(RuntimeUnavailable, match="engine native: computes on cpu, not on cuda"):
        edgedec.open("nano", engine="native", device="cuda")


def test_the_emulation_is_a_device_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EDGEDEC_CUDA")
    assert edgedec.open("nano", device="cuda:emulated").runtime.capabilities.device == "emulated"
    with pytest.raises(UsageError, match="'emulate' is not the number of a device"):
        edgedec.open("nano", device="cuda:emulate")


def test_conformance_takes_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from edgedec.testing.conformance import __main__ as command

    opened = list[str]()

    def some(name: str, opening: Any, *rest: object) -> Any:
        opened.append(opening(Bundle.open(find("nano")), RuntimeOptions()).capabilities.device)
        return SimpleNamespace(findings=[], failed=[])

    monkeypatch.delenv("EDGEDEC_CUDA")
    monkeypatch.setattr(command, "run_suite", some)
    assert command.main(["--runtime", "cuda:emulated"]) == 0
    assert opened == ["emulated"]
    assert "cuda:emulated: 0 checks, 0 failed" in capsys.readouterr().out


def test_the_detail_is_the_gpu_s_number(monkeypatch: pytest.MonkeyPatch) -> None:
    from edgedec.runtime import DeviceName

    opened = list[int]()
    monkeypatch.setattr(driver, "Gpu", opened.append)
    monkeypatch.setenv("EDGEDEC_CUDA", "3")
    for place in (DeviceName("cuda", "1"), DeviceName("cuda"), DeviceName("cuda", "0")):
        open_device(place)
    assert opened == [1, 3, 0]
    with pytest.raises(UsageError, match="is not the number of a device"):
        open_device(DeviceName("cuda", "first"))


def test_bench_device_takes_it() -> None:
    words = ("-m", "nano", "--device", "cuda", "--rows", "1", "--context", "4", "--prefill", "4", "-r", "1", "--json")
    done = CliRunner().invoke(_app.app, ["bench", "device", *words])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["device"] == "emulated"


def test_a_completion_over_http(nano: Path) -> None:
    asked = {"model": "nano", "prompt": "Once upon a time", "max_tokens": 5, "temperature": 0}
    texts = []
    for device in ("cuda", "cpu"):
        with started(nano, "--device", device, "-c", "64", "--slots", "2") as (address, _):
            request = urllib.request.Request(f"{address}/v1/completions", json.dumps(asked).encode())
            request.add_header("Content-Type", "application/json")
            with urllib.request.urlopen(request, timeout=120) as answer:
                told = json.load(answer)
        assert told["usage"]["completion_tokens"] == 5
        texts.append(told["choices"][0]["text"])
    assert texts[0] == texts[1]
    assert texts[0].strip()


def test_a_server_without_the_device_is_one_line(nano: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import subprocess
    import sys

    monkeypatch.setenv("EDGEDEC_CUDA", "7")
    command = [sys.executable, "-m", "edgedec", "serve", "-m", str(nano), "--device", "cuda", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1
    assert "no runtime can open it here on cuda" in done.stderr
