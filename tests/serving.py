"""A server for tests, in a thread or as the program that people start, on a port that was free."""

from __future__ import annotations

import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import edgedec


@contextmanager
def serving(model: edgedec.Model | Sequence[Any], **settings: Any) -> Iterator[tuple[str, Any]]:
    """(its address, the `Server`) of a model, or of model sources; `settings` of `Settings`, those of `ServerLimits`
    among them, and `adapters` of the model."""
    from edgedec.server.app import build
    from edgedec.server.limits import ServerLimits
    from edgedec.server.listen import bound, make
    from edgedec.server.pool import ModelSource
    from edgedec.server.service import Server, Settings

    known = ServerLimits.__dataclass_fields__
    limits = ServerLimits(**{"context": 512, **{k: settings.pop(k) for k in list(settings) if k in known}})
    adapters = settings.pop("adapters", None)
    sources = [ModelSource.of(model, adapters)] if isinstance(model, edgedec.Model) else model
    server = Server(sources, Settings(limits=limits, **settings))
    place = bound("127.0.0.1", 0)
    running = make(build(server), server.drain, grace=1, limits=server.settings.connections)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [place]}, daemon=True)
    thread.start()
    try:
        wait_for(lambda: running.started)
        yield f"http://127.0.0.1:{place.getsockname()[1]}", server
    finally:
        running.should_exit = True
        thread.join(20)
        place.close()
        assert not thread.is_alive()


@contextmanager
def started(bundle: Path, *more: str, models: bool = False) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`edgedec serve`: (its address, the process). It is told to end, and must not have failed anywhere. models: the
    folder holds bundles."""
    which = "--models" if models else "-m"
    command = [sys.executable, "-m", "edgedec", "serve", which, str(bundle), "--port", "0", "-t", "1", *more]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            said = next(line for line in process.stderr if " at " in line)  # after models that are not served
            place = said.partition(" at ")[2].split()[0].removesuffix("/v1")
            wait_for(lambda: answers(place))
            yield place, process
            process.terminate()
            assert "Traceback" not in process.stderr.read()
        finally:
            process.kill()


def answers(place: str) -> bool:
    try:
        return "ok" in fetch(f"{place}/health")
    except OSError:
        return False


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return str(answer.read().decode())


def metrics(place: str) -> dict[str, float]:
    """What it tells Prometheus, by name and labels."""
    lines = fetch(f"{place}/metrics").splitlines()
    return {key: float(value) for key, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


def wait_for(condition: Any, seconds: float = 20.0) -> None:
    """Until it holds; a test that waits in vain fails."""
    end = monotonic() + seconds
    while not condition():
        assert monotonic() < end, "waited in vain"
        sleep(0.005)
