"""`--device`: which engine serves it, what is refused, and in which words."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import edgedec
from edgedec.bundle import Bundle
from edgedec.cli._llama_flags.table import FLAGS
from edgedec.errors import RuntimeUnavailable, UsageError
from edgedec.runtime import DeviceName, choose_runtime, parse_device
from edgedec.runtimes.ort import providers
from edgedec.runtimes.ort.socs import SOCS, check_soc


def test_words() -> None:
    assert parse_device("") == DeviceName()
    assert parse_device("auto") == DeviceName("auto")
    assert str(parse_device("cuda:1")) == "cuda:1"
    assert parse_device("cuda:1").number == 1
    assert parse_device("qnn:SM8650").detail == "SM8650"
    for word in ("gpu", "cuda:", "cpu:1", "auto:x", ":1"):
        with pytest.raises(UsageError, match="device"):
            parse_device(word)
    with pytest.raises(UsageError, match="not the number"):
        _ = parse_device("cuda:first").number


def test_the_cpu_is_served_by_what_auto_means(nano: Path) -> None:
    bundle = Bundle.open(nano)
    assert choose_runtime(bundle, device="cpu") == choose_runtime(bundle)
    assert edgedec.open("nano", device="cpu").runtime.capabilities.device == "cpu"


def test_the_engine_made_for_a_device_comes_first(nano: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import edgedec.runtimes.cuda as cuda

    monkeypatch.setattr(cuda, "unavailable_reason", lambda bundle, device: None)
    assert choose_runtime(Bundle.open(nano), device="cuda") == "cuda"


def test_an_engine_refuses_devices_that_it_does_not_compute_on(nano: Path) -> None:
    with pytest.raises(RuntimeUnavailable, match="engine native: computes on cpu, not on webgpu"):
        edgedec.open("nano", engine="native", device="webgpu")
    with pytest.raises(RuntimeUnavailable, match=r"on openvino .*ort: "):
        edgedec.open("nano", device="openvino")


@pytest.mark.parametrize("name", sorted(providers.PROVIDERS))
def test_providers_that_are_not_here_are_named(name: str, nano: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="making artifacts needs onnx")
    from edgedec.export.amend import add_artifact

    provider = providers.PROVIDERS[name]
    if providers.missing(DeviceName(name)) is None:
        pytest.skip(f"{provider.package} is installed")
    shutil.copytree(nano, tmp_path / "nano")
    add_artifact(tmp_path / "nano", "devices")
    with pytest.raises(RuntimeUnavailable, match=f"{provider.ep}.*pip install {provider.package}"):
        edgedec.open(str(tmp_path / "nano"), engine="ort", device=name)


def test_formats_that_a_device_lacks_are_refused(nano: Path) -> None:
    from edgedec.runtimes.ort.device import _kv

    placed = providers.Placed.__new__(providers.Placed)
    placed.device, placed.provider = DeviceName("webgpu"), providers.PROVIDERS["webgpu"]
    assert _kv(Bundle.open(nano), None, placed) == "f32"
    with pytest.raises(RuntimeUnavailable, match="keys and values in f32, not int8"):
        _kv(Bundle.open(nano), "int8", placed)


def test_socs_are_known_by_name() -> None:
    assert check_soc("SM8650") in SOCS
    with pytest.raises(UsageError, match="no SoC 'SM1' for qnn; there are: SM8450"):
        check_soc("SM1")


def test_contexts_need_their_compiler(nano: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="making artifacts needs onnx")
    if find_spec("onnxruntime_qnn") is not None:
        pytest.skip("onnxruntime-qnn is installed")
    from edgedec.export.amend import add_artifact

    shutil.copytree(nano, tmp_path / "nano")
    before = sorted(path.name for path in (tmp_path / "nano").iterdir())
    for word, why in (("qnn:SM8650", "pip install onnxruntime-qnn"), ("qnn:X", "no SoC"), ("ort:x", "no such runtime")):
        with pytest.raises((RuntimeUnavailable, UsageError), match=why):
            add_artifact(tmp_path / "nano", word)
    assert sorted(path.name for path in (tmp_path / "nano").iterdir()) == before


def test_commands_say_it_in_one_line() -> None:
    command = [sys.executable, "-m", "edgedec", "run", "-p", "Once", "-n", "1", "--device"]
    for word, why in (("abacus", "no device 'abacus'; there are: auto, cpu"), ("qnn:SM8650", "no runtime can open it")):
        done = subprocess.run([*command, word], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert why in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
    done = subprocess.run([*command, "cpu", "--temp", "0"], capture_output=True, text=True, check=True)
    assert done.stdout.strip()


def test_devices_of_llama_cpp() -> None:
    convert = FLAGS["-dev"].convert
    assert convert is not None
    assert [convert(word) for word in ("none", "CUDA0", "cuda")] == ["cpu", "cuda:0", "cuda"]


@pytest.mark.parametrize("name", ["cuda", "dml"])
def test_the_number_of_a_device_reaches_its_provider(name: str) -> None:
    assert providers.Placed(parse_device(f"{name}:1")).options == {"device_id": "1"}
    assert providers.Placed(parse_device(name)).options == {}
    with pytest.raises(UsageError, match=f"device {name}:fast: 'fast' is not the number of a device, as in {name}:0"):
        providers.Placed(parse_device(f"{name}:fast"))
