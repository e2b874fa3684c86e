"""Targets: what they say is what the runtimes declare, and the page is what they say."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgedec.bench import timing
from edgedec.bench.engines_here import engines_here
from edgedec.bench.timing import Config, bench
from edgedec.bundle import Bundle
from edgedec.bundle.locate import NANO, find
from edgedec.bundle.manifest import Artifact
from edgedec.cli import main
from edgedec.errors import EdgedecError
from edgedec.runtime import RUNTIMES, RuntimeOptions, open_runtime, unavailable_reason
from edgedec.targets import Target, all_targets, lacking_packages

ROOT = Path(__file__).parents[2]
TARGETS = all_targets()


def test_names_are_unique_and_engines_exist() -> None:
    names = [target.name for target in TARGETS]
    assert len(set(names)) == len(names) >= 5
    assert {target.engine for target in TARGETS if target.engine} <= {*RUNTIMES.names()}


@pytest.mark.parametrize("target", [t for t in TARGETS if t.engine and not t.device], ids=lambda t: t.name)
def test_a_target_declares_what_its_runtime_does(target: Target) -> None:
    bundle = Bundle.open(find(NANO))
    if (reason := unavailable_reason(target.engine, bundle)) is not None:
        pytest.skip(reason)
    can = open_runtime(target.engine, bundle, RuntimeOptions(threads=1)).capabilities
    assert (set(can.kinds), can.kv_formats, can.trees) == (set(target.kinds), target.kv, target.trees)


def test_missing_packages_are_named() -> None:
    assert lacking_packages("json", "no_such_package_")() == "no_such_package_ is not installed"
    assert lacking_packages("json")() is None


def listed(capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["targets"]) == 0
    return capsys.readouterr().out


def test_the_list_says_what_each_target_needs(capsys: pytest.CaptureFixture[str]) -> None:
    said = listed(capsys)
    for target in TARGETS:
        assert target.needs.partition("[")[0] in said
    assert "](" not in said


def test_a_linker_that_is_not_here_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = "cannot be made here: aarch64-linux-gnu-g++ is not installed"
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert gone in listed(capsys)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert gone not in listed(capsys)


def test_linkers_are_those_of_the_compiler() -> None:
    pytest.importorskip("tvm", reason="an extra")
    from edgedec.export.compiled.machines import MACHINES

    for target in TARGETS:
        machine = MACHINES.get(target.name.removeprefix("tvm:"))
        for linker in machine.linker if machine else ():
            with pytest.MonkeyPatch.context() as patch:
                program = linker.split()[0]
                patch.setattr(shutil, "which", lambda name, program=program: name if name == program else None)
                assert target.unmade() is None, linker


def test_devices_are_here_if_one_of_them_is(monkeypatch: pytest.MonkeyPatch) -> None:
    from edgedec.runtimes import ort

    devices = next(target for target in TARGETS if target.name == "devices")
    monkeypatch.setattr(ort, "missing", lambda device: f"{device} is not installed")
    assert "none for webgpu" in (devices.missing() or "")
    monkeypatch.setattr(ort, "missing", lambda device: None if device.name == "openvino" else "not installed")
    assert devices.missing() is None


# -- `bench targets`


def test_every_device_is_measured_or_said_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    from edgedec.runtimes.ort import device as on_device

    def missing(device: Any) -> str | None:
        return None if device.name == "webgpu" else f"{device} is not installed"

    monkeypatch.setattr(on_device, "missing", missing)
    bundle = Bundle.open(find(NANO))
    files = dict.fromkeys(("devices", "qnn:SM8650"), Artifact(()))
    bundle = replace(bundle, manifest=replace(bundle.manifest, artifacts={**bundle.manifest.artifacts, **files}))
    present, absent = engines_here(bundle)
    assert ("ort", "webgpu") in present
    assert absent["ort openvino"] == "openvino is not installed"
    assert absent["ort qnn:SM8650"] == "qnn:SM8650 is not installed"
    assert "ort qnn" not in absent


class _Worker:
    """A process that measures; of some devices it does not open, or its first run fails."""

    def __init__(self, config: Config) -> None:
        self.config, self.facts = config, {"load_s": 0.5}
        self.closed = False

    def __enter__(self) -> _Worker:
        if self.config.device == "dml":
            raise EdgedecError("ort dml: no driver")
        return self

    def __exit__(self, *error: object) -> None:
        self.closed = True

    def request(self, request: dict[str, Any]) -> dict[str, Any]:
        if self.config.device == "webgpu":
            raise EdgedecError("ort webgpu: computes nothing here")
        return {"peak_bytes": 1} if request["do"] == "end" else {"prefill_s": 1, "decode_s": 2}


def test_what_fails_in_its_first_run_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "BenchWorker", _Worker)
    configs = [Config("ort", "m", 4, 4, device=device) for device in ("dml", "", "webgpu", "openvino")]
    why: dict[str, str] = {}
    results, ratios = bench(configs, 2, refused=lambda config, reason: why.update({config.label: reason}))
    assert [result.config.label for result in results] == ["ort", "ort openvino"]
    assert [ratio.over for ratio in ratios] == ["ort openvino"]
    assert why == {"ort dml": "no driver", "ort webgpu": "computes nothing here"}
    with pytest.raises(EdgedecError, match="no driver"):
        bench(configs, 2)


def test_json_has_what_is_missing_to_make_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["targets", "--json"]) == 0
    assert all({"needs", "missing", "unmade"} <= set(target) for target in json.loads(capsys.readouterr().out))


def test_the_page_is_up_to_date() -> None:
    script = [sys.executable, str(ROOT / "docs" / "site" / "targets.py"), "--check"]
    assert subprocess.run(script, check=False).returncode == 0, "run python docs/site/targets.py"
