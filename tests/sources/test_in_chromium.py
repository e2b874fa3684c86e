"""WGSL in Chromium: its compiler, which is stricter than others about barriers, takes every kernel."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sources.models import bundle_of

from edgedec.bundle.locate import NANO, find
from edgedec.export.amend import add_artifact
from edgedec.runtimes.tvm.plans import source_of

pytest.importorskip("tvm")
api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
webgpu = pytest.importorskip("edgedec.testing.sources.webgpu", reason="needs wgpu")

FLAGS = ["--no-sandbox", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--enable-features=Vulkan"]
SCRIPT = """async (modules) => {
  const adapter = navigator.gpu && await navigator.gpu.requestAdapter();
  if (!adapter) return null;
  const device = await adapter.requestDevice(), found = {};
  for (const [name, code] of Object.entries(modules)) {
    device.pushErrorScope("validation");
    const module = device.createShaderModule({ code });
    const said = (await module.getCompilationInfo()).messages.filter((m) => m.type === "error").map((m) => m.message);
    if (!said.length) device.createComputePipeline({ layout: "auto", compute: { module, entryPoint: name } });
    const error = await device.popErrorScope();
    found[name] = error ? [...said, error.message] : said;
  }
  return found;
}"""


@pytest.fixture
def page() -> Iterator[Any]:
    with api.sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        except api.Error as error:
            pytest.skip(f"no browser: {error.message.splitlines()[0]}")
        opened = browser.new_page()
        # WebGPU is there in a secure context only; nothing is fetched.
        opened.route("**/*", lambda route: route.fulfill(status=200, content_type="text/html", body="<p>"))
        opened.goto("https://localhost/")
        yield opened
        browser.close()


def refused(page: Any, modules: dict[str, str]) -> dict[str, list[str]]:
    """What the browser's compiler says of kernels that it does not take."""
    found = page.evaluate(SCRIPT, modules)
    if found is None:
        pytest.skip("no WebGPU adapter, not even an emulated one")
    assert set(found) == set(modules)
    return {name: said for name, said in found.items() if said}


def test_chromium_compiles_every_kernel(page: Any, tmp_path: Path) -> None:
    folder = tmp_path / "nano"
    shutil.copytree(find(NANO), folder)
    source, plan = source_of(add_artifact(folder, "tvm:webgpu"), "webgpu")
    modules = webgpu.modules_of(source)
    assert set(modules) == set(plan.kernels)
    assert refused(page, modules) == {}
    assert len(plan.kernels) > 20
    # A barrier that some threads miss is refused: what is checked is checked.
    broken = {"main": "@compute @workgroup_size(64)\nfn main(@builtin(local_invocation_id) id : vec3<u32>) {\n"
              "  if (id.x < 3u) { workgroupBarrier(); }\n}"}  # fmt: skip
    assert "workgroupBarrier" in str(refused(page, broken)["main"])


@pytest.mark.skipif("EDGEDEC_SLOW_TESTS" not in os.environ, reason="a minute; set EDGEDEC_SLOW_TESTS")
@pytest.mark.parametrize(("model", "how"), [("experts", "int4+32"), ("states", "int8+64")])
def test_chromium_compiles_experts_and_states(page: Any, tmp_path: Path, model: str, how: str) -> None:
    source, plan = source_of(bundle_of(tmp_path / "bundle", model, how, ("webgpu",)), "webgpu")
    assert {name.partition("_")[0] for name in plan.kernels} >= {"route", "combine", "ssm"} - {
        "ssm" if model == "experts" else ""
    }
    assert refused(page, webgpu.modules_of(source)) == {}
