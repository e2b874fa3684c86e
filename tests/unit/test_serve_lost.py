"""A server whose device is lost: what clients, `/health` and the process that supervises it see."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

for package in ("starlette", "uvicorn", "httpx"):
    pytest.importorskip(package, reason=f"the server's tests need {package}")
import httpx  # noqa: E402
from python_steps import python_steps  # noqa: E402
from serving import answers, metrics, serving, wait_for  # noqa: E402

import edgedec  # noqa: E402
from edgedec.kernels.device.interface import DeviceError  # noqa: E402

SAID = "GPU: running kernels: an illegal memory access was encountered (CUDA error 700)"
# Of every process of the server: its engine fails once the file is there, and takes it away when it does.
_BREAKS = f"""
import os
from types import SimpleNamespace
from edgedec.kernels.device.interface import DeviceError
from edgedec.runtimes.native import NativeRuntime

def fail():
    raise DeviceError({SAID!r})

def forward(self, calls, forward=NativeRuntime.forward):
    if os.path.exists(os.environ["BREAKS"]):
        os.remove(os.environ["BREAKS"])
        self.device = SimpleNamespace(synchronize=fail)
    if hasattr(self, "device"):
        fail()
    return forward(self, calls)

NativeRuntime.forward = forward
"""
BODY = {"prompt": "Once", "max_tokens": 4, "temperature": 0}


@pytest.fixture
def model(nano: Path) -> edgedec.Model:
    model = edgedec.open(nano, threads=1)
    python_steps(model.runtime)
    return model


def breaks(model: edgedec.Model, monkeypatch: pytest.MonkeyPatch, stays: bool) -> None:
    """From now on a call fails, and, if that stays, everything."""

    def fail(*given: Any) -> None:
        raise DeviceError(SAID)

    monkeypatch.setattr(model.runtime, "forward", fail)
    device = SimpleNamespace(synchronize=fail if stays else lambda: None)
    monkeypatch.setattr(model.runtime, "device", device, raising=False)


def test_a_lost_device_is_told_and_nothing_more_is_accepted(
    model: edgedec.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(model, slots=2) as (place, server):
        assert httpx.post(f"{place}/v1/completions", json=BODY).status_code == 200
        breaks(model, monkeypatch, stays=True)
        failed = httpx.post(f"{place}/v1/completions", json=BODY)
        assert (failed.status_code, failed.json()["error"]["message"]) == (500, f"the server failed: {SAID}")
        assert SAID in server.lost
        health = httpx.get(f"{place}/health")
        assert (health.status_code, health.json()["status"]) == (503, "device lost")
        assert SAID in health.json()["reason"]
        refused = httpx.post(f"{place}/v1/completions", json=BODY)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "device_lost")


def test_a_stream_ends_with_what_the_device_said(model: edgedec.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(model, slots=2) as (place, _):
        body = {"prompt": "Once", "max_tokens": 400, "stream": True, "ignore_eos": True}
        with httpx.stream("POST", f"{place}/v1/completions", json=body) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            breaks(model, monkeypatch, stays=True)
            assert SAID in [line for line in lines if line][-2]


def test_a_device_that_goes_on_is_not_lost(model: edgedec.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(model, slots=2) as (place, server):
        with monkeypatch.context() as patch:
            breaks(model, patch, stays=False)
            assert httpx.post(f"{place}/v1/completions", json=BODY).status_code == 500
        assert server.lost == ""
        assert httpx.get(f"{place}/health").json()["status"] == "ok"
        assert httpx.post(f"{place}/v1/completions", json=BODY).status_code == 200


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "sitecustomize.py").write_text(_BREAKS, "utf-8")
    return {**os.environ, "PYTHONPATH": str(tmp_path), "BREAKS": str(tmp_path / "now")}


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_process_ends_and_a_replica_is_started_again(
    nano: Path, environment: dict[str, str], tmp_path: Path, replicas: int
) -> None:
    command = [sys.executable, "-m", "edgedec", "serve", "--port", "0", "-t", "1", "--engine", "native"]
    more = ["-m", str(nano), "--replicas", str(replicas)]
    with subprocess.Popen([*command, *more], stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        try:
            place = process.stderr.readline().partition(" at ")[2].split()[0].removesuffix("/v1")
            wait_for(lambda: answers(place))
            assert httpx.post(f"{place}/v1/completions", json=BODY, timeout=60).status_code == 200
            (tmp_path / "now").touch()
            assert SAID in httpx.post(f"{place}/v1/completions", json=BODY, timeout=60).text
            if replicas == 1:
                assert process.wait(30) == 1
                assert process.stderr.read().splitlines()[-1] == f"edgedec: the device is lost: {SAID}; the server ends"
                return
            starts = [f'edgedec_replica_starts_total{{replica="{k}"}}' for k in range(replicas)]
            wait_for(lambda: sorted(metrics(place)[name] for name in starts) == [1, 2], 60)
            assert httpx.post(f"{place}/v1/completions", json=BODY, timeout=60).status_code == 200
            process.terminate()
            said = process.stderr.read()
            assert f"ended (the device is lost: {SAID}; the server ends); it is started again" in said
        finally:
            process.kill()
