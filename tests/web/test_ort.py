"""`edgedec add web` and runtimes/web/ort.js: ONNX Runtime in Chromium decodes what it does in Python; on WebGPU, nano's
story."""

from __future__ import annotations

import functools
import json
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_sessions import session as session_of
from weblibrary import WEB

import edgedec
from edgedec.bundle.folder import Bundle

ORT = Path(__file__).parent / "node_modules" / "onnxruntime-web" / "dist"
PROMPT = "Once upon a time"
GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "nano.json").read_text("utf-8"))
SCRIPT = """async ([provider, ids, n]) => {
  const ort = await import(provider === "wasm" ? "/ort/ort.wasm.min.mjs" : "/ort/ort.webgpu.min.mjs");
  Object.assign(ort.env.wasm, { wasmPaths: "/ort/", numThreads: 1 });
  ort.env.logLevel = "error";
  const { openOrt } = await import("/web/ort.js"), told = [];
  const model = await openOrt("/bundle/", { ort, provider, cache: false });
  for await (const { id } of model.generate(ids, { maxTokens: n })) told.push(id);
  return told;
}"""


@pytest.fixture(scope="module")
def bundle(nano: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("onnx", reason="needs onnx")
    from edgedec.export.amend import add_artifact

    folder = tmp_path_factory.mktemp("web") / "nano"
    shutil.copytree(nano, folder)
    add_artifact(folder, "web")
    return folder


def python_story(bundle: Path, ids: list[int], n: int) -> list[int]:
    """The likeliest tokens by onnxruntime on the same graph."""

    session = session_of(str(bundle / "web.onnx"))
    names = [each.name for each in session.get_outputs()]
    block = next(iter(edgedec.open(bundle).spec.attention.values()))
    empty = np.zeros((1, block.n_kv_heads, 0, block.head_dim), np.float32)
    past = {each.name: empty for each in session.get_inputs() if each.name.startswith("past")}
    told, rows = list[int](), ids
    while len(told) < n:
        mask = np.ones((1, len(ids) + len(told)), np.int64)
        found = session.run(None, {"input_ids": np.array([rows], np.int64), "attention_mask": mask, **past})
        result = dict(zip(names, found, strict=True))
        past = {name: result[name.replace("past_key_values", "present")] for name in past}
        rows = [int(result["logits"].argmax())]
        told += rows
    return told


def test_the_graph_has_no_halves_on_the_way(bundle: Path) -> None:
    """Each float16 is a constant that is widened at once: what a session does when it loads."""
    import onnx

    graph = onnx.load(bundle / "web.onnx", load_external_data=False).graph
    halves = {each.name for each in graph.initializer if each.data_type == onnx.TensorProto.FLOAT16}
    users = [(node.op_type, name) for node in graph.node for name in node.input if name in halves]
    assert len(users) > 10
    assert {op for op, _ in users} <= {"Cast", "Transpose"}
    assert Bundle.open(bundle, verify=True).manifest.artifacts["web"].files == ("web.onnx",)


class Handler(SimpleHTTPRequestHandler):
    def __init__(self, *args: Any, folders: dict[str, Path]) -> None:
        self.folders = folders
        super().__init__(*args)

    def translate_path(self, path: str) -> str:
        top, _, rest = path.split("?")[0].strip("/").partition("/")
        return str(self.folders.get(top, Path("/none")) / rest)

    def guess_type(self, path: Any) -> str:
        return "text/javascript" if str(path).endswith((".mjs", ".js")) else super().guess_type(path)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def page(bundle: Path) -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    if not ORT.is_dir():
        pytest.skip("no onnxruntime-web: npm install in tests/web")
    folders = {"web": WEB, "bundle": bundle, "ort": ORT}
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, folders=folders))
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    flags = ["--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--enable-features=Vulkan"]
    if sys.platform == "linux" and os.geteuid() == 0:
        flags.append("--no-sandbox")
    with api.sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
        except api.Error as error:
            pytest.skip(f"no browser: {error.message.splitlines()[0]}")
        opened = browser.new_page()
        opened.goto(f"http://127.0.0.1:{server.server_port}/bundle/edgedec.json")
        yield opened
        browser.close()
    server.shutdown()


def test_on_webassembly_it_is_pythons_onnxruntime(page: Any, bundle: Path) -> None:
    ids = edgedec.open(bundle).tokenizer.encode(PROMPT)
    told = page.evaluate(SCRIPT, ["wasm", ids, 24])
    assert told == python_story(bundle, ids, 24)
    assert len(set(told)) > 10


def test_on_webassembly_it_tells_the_golden_story(page: Any, bundle: Path) -> None:
    ids = edgedec.open(bundle).tokenizer.encode(PROMPT)
    assert page.evaluate(SCRIPT, ["wasm", ids, len(GOLDEN[PROMPT])]) == GOLDEN[PROMPT]


@pytest.mark.skipif(not os.environ.get("EDGEDEC_SLOW_TESTS"), reason="takes minutes: asks for EDGEDEC_SLOW_TESTS=1")
def test_on_webgpu_it_tells_the_native_engines_story(page: Any, bundle: Path) -> None:
    """The 18th token is nearly a tie, which the reference runtime decides otherwise."""
    if not page.evaluate("async () => !!(await navigator.gpu?.requestAdapter())"):
        pytest.skip("no WebGPU adapter, not even an emulated one")
    native = edgedec.open(bundle, engine="native")
    ids = native.tokenizer.encode(PROMPT)
    want = [int(token) for token in native.session(speculate="off").tokens(ids, max_tokens=24)]
    assert page.evaluate(SCRIPT, ["webgpu", ids, 24]) == want
