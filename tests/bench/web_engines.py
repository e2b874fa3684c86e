"""Tokens a second and memory of a bundle in Chromium, by turns: the edgedec engine on WebAssembly (plain, relaxed
vectors, threads), ONNX Runtime on WebAssembly and on WebGPU; and natively.

    npm install --prefix tests/web onnxruntime-web
    python tests/bench/web_engines.py -m nano -n 64 -r 5
    python tests/bench/web_engines.py -m BUNDLE -n 16 -r 9 -t 1 2 4 --only-threads

All of them one token a call, greedy. Each engine has a browser of its own; its memory is what the processes of that
browser hold more than with an empty page, without mapped files. Needs Linux, Chromium, playwright and zig's compiler.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

SCRIPT = """async ([engine, ids, n, threads]) => {
  const ours = engine.startsWith("wasm"), isa = engine.replace("-threads", "");
  const openOurs = async () => {
    const { open } = await import("/web/client.js");
    return open("/bundle/", { isa, threads, base: `${location.origin}/web/`, cache: false });
  };
  const openOrt = async () => {
    const provider = engine.slice(4), ort = await import(`/ort/ort.${provider === "wasm" ? "wasm" : "webgpu"}.min.mjs`);
    Object.assign(ort.env.wasm, { wasmPaths: "/ort/", numThreads: threads });
    return (await import("/web/ort.js")).openOrt("/bundle/", { ort, provider, cache: false });
  };
  const model = await (globalThis.opened ??= ours ? openOurs() : openOrt());
  const session = ours && await model.session({ speculate: "off" });
  const tokens = ours ? session.generate(ids, { maxTokens: n, ignoreEos: true })
    : model.generate(ids, { maxTokens: n });
  let began = 0;
  const told = [];
  for await (const token of tokens) { began ||= performance.now(); told.push(token.id); }
  if (ours) {
    const { seconds, promptSeconds } = session.result;
    await session.free();
    return [(n - 1) / (seconds - promptSeconds), told];
  }
  return [(told.length - 1) / (performance.now() - began) * 1000, told];
}"""
FLAGS = ("--no-sandbox", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--enable-features=Vulkan")
Turn = Callable[[], tuple[float, list[int]]]


class Handler(SimpleHTTPRequestHandler):
    """Three folders under one address, isolated from others, which threads need."""

    folders: dict[str, Path]

    def translate_path(self, path: str) -> str:
        top, _, rest = path.split("?")[0].strip("/").partition("/")
        return str(self.folders.get(top, Path("/none")) / rest)

    def end_headers(self) -> None:
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        super().end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def serve(folders: dict[str, Path]) -> str:
    handler = type("Folders", (Handler,), {"folders": folders})
    handler.extensions_map = {**Handler.extensions_map, ".mjs": "text/javascript"}
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def held(process: int | str) -> int:
    """Its bytes of memory without files; shared ones by halves, thirds and so on."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:")))


def processes() -> dict[int, int]:
    """Those below this one, and what each holds."""
    parents = {}
    for each in filter(str.isdigit, os.listdir("/proc")):
        try:
            parents[int(each)] = int(Path("/proc", each, "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    below, found = {os.getpid()}, dict[int, int]()
    while new := {child for child, parent in parents.items() if parent in below} - below:
        below |= new
    for child in below - {os.getpid()}:
        try:
            found[child] = held(child)
        except OSError:
            continue
    return found


class InBrowser:
    """An engine in a browser of its own."""

    def __init__(self, chromium: Any, url: str, engine: str, ids: list[int], n: int, threads: int) -> None:
        before = processes()
        self._page = chromium.launch(executable_path=shutil.which("chromium"), args=list(FLAGS)).new_page()
        self._page.set_default_timeout(0)
        self._page.goto(f"{url}/bundle/edgedec.json")
        time.sleep(3)
        self._pids = set(processes()) - set(before)
        self._empty = self._bytes()
        self._asked = [engine, ids, n, threads]

    def turn(self) -> tuple[float, list[int]]:
        speed, told = self._page.evaluate(SCRIPT, self._asked)
        return speed, told

    def _bytes(self) -> int:
        return sum(size for pid, size in processes().items() if pid in self._pids)

    def memory(self) -> int:
        return self._bytes() - self._empty


def native(path: Path, ids: list[int], n: int, threads: int, pipe: Any) -> None:
    """A process that answers each message with the tokens a second of a generation, and what it holds by then more than
    before it opened the model: with the weights, which are mapped."""
    import edgedec

    edgedec.open("nano", engine="native")
    before, weights = held("self"), (path / "weights.bin").stat().st_size
    model = edgedec.open(path, engine="native", threads=threads)
    while pipe.recv():
        session = model.session(speculate="off")
        began, told = 0.0, []
        for token in session.tokens(ids, max_tokens=n, ignore_eos=True):
            began = began or time.perf_counter()
            told.append(int(token))
        pipe.send(((len(told) - 1) / (time.perf_counter() - began), told, held("self") - before + weights))


class Native:
    """The native engine in a process of its own."""

    def __init__(self, *given: Any) -> None:
        self._pipe, other = multiprocessing.get_context("spawn").Pipe()
        worker = multiprocessing.get_context("spawn").Process(target=native, args=(*given, other), daemon=True)
        worker.start()
        self._held = 0

    def turn(self) -> tuple[float, list[int]]:
        self._pipe.send(True)
        speed, told, self._held = self._pipe.recv()
        return speed, told

    def memory(self) -> int:
        return self._held


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", default="nano")
    parser.add_argument("-n", type=int, default=64, help="tokens")
    parser.add_argument("-r", type=int, default=5, help="turns")
    parser.add_argument("-t", type=int, nargs="+", default=[2], help="threads of the engines that have several")
    parser.add_argument("--only-threads", action="store_true", help="what threads gain: no other engines")
    parser.add_argument("--webgpu", type=int, default=4, metavar="N", help="tokens on WebGPU; 0: none")
    parser.add_argument("--ort", type=Path, default=ROOT / "tests/web/node_modules/onnxruntime-web/dist")
    return parser.parse_args()


def engines(told: argparse.Namespace) -> dict[str, tuple[str, int, int]]:
    """Of each engine in the browser: which it is, tokens, threads."""
    found = {f"wasm-relaxed-threads-{t}": ("wasm-relaxed-threads", told.n, t) for t in told.t}
    if told.only_threads:
        return found
    found |= {name: (name, told.n, 1) for name in ("wasm", "wasm-relaxed")}
    if told.ort.is_dir():
        found |= {"ort-wasm": ("ort-wasm", told.n, 1)}
        found |= {"ort-webgpu": ("ort-webgpu", told.webgpu, 1)} if told.webgpu else {}
    return found


def main() -> None:
    told = options()
    from playwright.sync_api import sync_playwright
    from weblibrary import library_folder

    import edgedec
    from edgedec.bundle.locate import find
    from edgedec.export.amend import add_artifact

    web = library_folder()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        bundle = Path(folder, "bundle")
        shutil.copytree(find(told.model), bundle)
        if told.ort.is_dir() and not told.only_threads:
            add_artifact(bundle, "web")
        opened = edgedec.open(bundle)
        ids = opened.tokenizer.encode("Once upon a time") if opened.bundle.manifest.text.tokenizer else [5, 6, 7, 8]
        url = serve({"web": web, "bundle": bundle, "ort": told.ort})
        all_: dict[str, Any] = {"native": Native(bundle, ids, told.n, 1)}
        all_ |= {f"native-{t}": Native(bundle, ids, told.n, t) for t in told.t if t > 1}
        for name, (engine, n, threads) in engines(told).items():
            all_[name] = InBrowser(playwright.chromium, url, engine, ids, n, threads)
        speeds, text = {name: list[float]() for name in all_}, {name: list[int]() for name in all_}
        for _ in range(told.r):
            for name, engine in all_.items():
                speed, text[name] = engine.turn()
                speeds[name].append(speed)
        for name, found in speeds.items():
            same = text[name] == text["native"][: len(text[name])]
            figures = {"median": statistics.median(found), "least": min(found), "most": max(found)}
            print(json.dumps({"engine": name} | figures | {"memory": all_[name].memory(), "natives_story": same}))
    print(json.dumps({"load": os.getloadavg(), "cores": os.cpu_count()}))


if __name__ == "__main__":
    main()
