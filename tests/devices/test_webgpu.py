"""WebGPU by onnxruntime's plugin, on whatever Vulkan driver is there: SwiftShader in CI.

pip install onnxruntime-ep-webgpu==0.4.0
apt-get install chromium libvulkan1
export VK_ICD_FILENAMES=/usr/lib/chromium/vk_swiftshader_icd.json ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER=1
"""

from __future__ import annotations

import ctypes.util
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("onnx", reason="making artifacts needs onnx")

import edgedec
from edgedec.bundle import Bundle
from edgedec.errors import RuntimeUnavailable
from edgedec.export.amend import add_artifact
from edgedec.runtime import RuntimeOptions, open_runtime
from edgedec.runtimes.ort import providers
from edgedec.sampling import Sampling
from edgedec.testing.conformance import run_suite, suite

if find_spec("onnxruntime_ep_webgpu") is None:
    pytest.skip("onnxruntime-ep-webgpu is not installed", allow_module_level=True)
if not Path(os.environ.get("VK_ICD_FILENAMES", "/nowhere")).is_file():
    pytest.skip("no Vulkan driver is named: set VK_ICD_FILENAMES, as this file says", allow_module_level=True)
_FOLDERS = os.environ.get("LD_LIBRARY_PATH", "").split(":")
if ctypes.util.find_library("vulkan") is None and not any(Path(f, "libvulkan.so.1").is_file() for f in _FOLDERS if f):
    pytest.skip("no Vulkan loader: install libvulkan1", allow_module_level=True)
os.environ.setdefault("ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER", "1")
WEBGPU = RuntimeOptions(device="webgpu")


@pytest.fixture(scope="module")
def told(nano: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("webgpu") / "nano"
    shutil.copytree(nano, folder)
    return add_artifact(folder, "devices")


def story(bundle: Bundle, speculate: str, **how: str) -> tuple[str, int]:
    """The greedy text of a device, and how many tokens of it were drafted."""
    model = edgedec.open(str(bundle.path), kv="f32", engine=how.get("engine", "auto"), device=how.get("device", "auto"))
    session, prompt = model.session(speculate=speculate), "The dog was happy. The dog was happy. The dog"
    text = "".join(session.generate(prompt, max_tokens=8, sampling=Sampling(temperature=0)))
    return text, session.stats.proposed


def test_conforms(monkeypatch: pytest.MonkeyPatch) -> None:
    models = suite.MODELS if os.environ.get("EDGEDEC_SLOW_TESTS") else {"plain": suite.MODELS["plain"]}
    monkeypatch.setattr(suite, "MODELS", models)
    report = run_suite("ort:webgpu", lambda bundle, how: open_runtime("ort", bundle, replace(how, device="webgpu")))
    assert [f"{f.model}: {f.check}: {f.message}" for f in report.failed] == []
    assert len({f.check for f in report.findings if f.state == "passed"}) >= 20


def test_nano_tells_its_story_with_drafts_and_without(told: Bundle) -> None:
    text, _ = story(told, "off", device="webgpu")
    assert text == story(told, "off", engine="native")[0]
    drafted, proposed = story(told, "copy:fixed=4", device="webgpu")
    assert proposed > 0
    assert drafted == text


def test_nodes_that_are_left_to_the_cpu_are_named(told: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    able = replace(providers.PROVIDERS["webgpu"], kv=("int8",))
    monkeypatch.setitem(providers.PROVIDERS, "webgpu", able)
    runtime = open_runtime("ort", told, replace(WEBGPU, kv="int8"))
    with pytest.raises(
        RuntimeUnavailable, match=r"webgpu cannot compute \d+ of \d+ nodes of device_part.*Quant"
    ) as error:
        runtime.load()
    assert "\n" not in str(error.value)


def test_without_a_driver_it_is_refused_and_not_left_to_the_cpu(told: Bundle) -> None:
    hidden = {**os.environ, "VK_ICD_FILENAMES": "/nowhere.json", "VK_DRIVER_FILES": "/nowhere.json"}
    hidden.pop("ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER", None)
    command = [sys.executable, "-m", "edgedec", "run", "-m", str(told.path), "--device", "webgpu", "-p", "a", "-n", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=hidden)
    said = [line for line in done.stderr.splitlines() if line.startswith("edgedec:")]
    assert done.returncode == 1
    assert len(said) == 1
    assert "webgpu" in said[0]
