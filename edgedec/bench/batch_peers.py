"""llama.cpp generating many texts at a time: its own server, or, where there is none, its library."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection, HTTPException
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from time import monotonic, perf_counter, sleep
from typing import TYPE_CHECKING, Any

from edgedec.bench.batch import BatchWork, Contestant, Took
from edgedec.bench.llama_weights import LLAMA, write_weights
from edgedec.bench.timing import BenchWorker, Config
from edgedec.errors import EdgedecError, RuntimeUnavailable
from edgedec.extras import install_command

if TYPE_CHECKING:
    from edgedec.model import Model

SERVER = "llama-server"
_START_S, _ANSWER_S = 120.0, 3600.0
# llama.cpp keeps the cache of a sequence in whole blocks of this many tokens.
_BLOCK = 256


class LlamaServer:
    """`llama-server` with as many slots as texts at a time, and a client for each; restarted for every turn, so that it
    takes no memory while others are measured. Starting is not counted."""

    name = "llama.cpp's server"

    def __init__(self, binary: str, gguf: str, threads: int) -> None:
        self._binary, self._gguf, self._threads = binary, gguf, threads

    def run(self, work: BatchWork, size: int) -> Took:
        with self._serving(work, size) as port, ThreadPoolExecutor(size) as pool:
            _complete(port, work.prompts[0], 2)
            began = perf_counter()
            made = list(pool.map(lambda ids: _complete(port, ids, work.tokens), work.prompts))
            seconds = perf_counter() - began
        if short := [n for n in made if n != work.tokens]:
            raise RuntimeUnavailable(f"{SERVER}: {len(short)} texts have {short[0]} tokens and not {work.tokens}")
        return Took(seconds)

    @contextmanager
    def _serving(self, work: BatchWork, size: int) -> Iterator[int]:
        port = _free_port()
        each = -(-(work.longest + 1) // _BLOCK) * _BLOCK
        options = ["-np", size, "-cb", "-c", size * each, "-t", self._threads, "-tb", self._threads]
        command = [self._binary, "-m", self._gguf, "--host", "127.0.0.1", "--port", port, *options]
        # All prompts differ, so no prompt cache is needed. Set by the environment, as older servers have no flag for
        # it.
        env = {**os.environ, "LLAMA_ARG_CACHE_RAM": "0"}
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(list(map(str, command)), stdin=quiet, stdout=quiet, stderr=quiet, env=env)
        try:
            _wait(process, port)
            yield port
        finally:
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class LlamaDecode:
    """The library in a process of its own: one token of every text in a call, as the server does it."""

    name = "llama.cpp, batched decode"

    def __init__(self, worker: BenchWorker) -> None:
        self._worker = worker

    def run(self, work: BatchWork, size: int) -> Took:
        request = {"do": "together", "size": size, "tokens": work.tokens, "prompts": work.prompts}
        return Took(float(self._worker.request(request)["seconds"]))


@contextmanager
def llama_contestant(
    model: Model, work: BatchWork, threads: int
) -> Iterator[tuple[dict[str, Contestant], dict[str, str]]]:
    """llama.cpp on the same weights, while it is measured; or no contestant, and the reason by name."""
    binary = which(SERVER)
    if binary is None and find_spec("llama_cpp") is None:
        yield {}, {LLAMA: f"needs {SERVER} on PATH, or llama-cpp-python: {install_command('peers')}"}
        return
    with ExitStack() as stack:
        path = Path(stack.enter_context(TemporaryDirectory(prefix="edgedec-"))) / "weights.gguf"
        if reason := write_weights(model.bundle, path):
            yield {}, {LLAMA: reason}
            return
        if binary is not None:
            yield {LlamaServer.name: LlamaServer(binary, str(path), threads)}, {}
            return
        longest = work.longest - work.tokens
        config = Config(LLAMA, str(model.bundle.path), longest, work.tokens, threads, gguf=str(path))
        try:
            worker = stack.enter_context(BenchWorker(config))
        except EdgedecError as error:
            yield {}, {LLAMA: str(error)}
            return
        yield {LlamaDecode.name: LlamaDecode(worker)}, {}


def _complete(port: int, ids: tuple[int, ...], tokens: int) -> int:
    """How many tokens the server generated after `ids`."""
    largest = {"temperature": 0, "samplers": ["top_k"], "top_k": 1}
    fixed = {"ignore_eos": True, "cache_prompt": False, "stream": False, **largest}
    request = {"prompt": ids, "n_predict": tokens, **fixed}
    try:
        answer = _http(port, "POST", "/completion", _ANSWER_S, json.dumps(request))
    except (OSError, HTTPException, ValueError) as error:
        raise RuntimeUnavailable(f"{SERVER}: {error or type(error).__name__}") from None
    if "tokens_predicted" not in answer:
        raise RuntimeUnavailable(f"{SERVER}: {' '.join(json.dumps(answer.get('error', answer)).split())[:200]}")
    return int(answer["tokens_predicted"])


def _http(port: int, method: str, path: str, seconds: float, body: str | None = None) -> dict[str, Any]:
    connection = HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    return answer


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    """Until the model is loaded."""
    end = monotonic() + _START_S
    while monotonic() < end:
        if process.poll() is not None:
            raise RuntimeUnavailable(f"{SERVER} ended with code {process.returncode} as it started")
        try:
            if _http(port, "GET", "/health", 5).get("status") == "ok":
                return
        except (OSError, HTTPException, ValueError):
            pass
        sleep(0.05)
    raise RuntimeUnavailable(f"{SERVER} was not ready after {_START_S:.0f} s")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
