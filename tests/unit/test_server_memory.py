"""What the C library is told to do with a server's memory."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

import edgedec
from edgedec.cli import main

_THREADS = """
import ctypes, sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from edgedec.server import memory
if sys.argv[2] == "shared":
    memory.share_pools()
barrier = Barrier(8)
def take(i):
    barrier.wait()
    held = [bytearray(2000) for _ in range(100)]
    barrier.wait()
    return len(held)
with ThreadPoolExecutor(8) as pool:
    assert sum(pool.map(take, range(8))) == 800
memory.release_memory()
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(libc.fopen(sys.argv[1].encode(), b"w"))
assert libc.malloc_info(0, file) == 0
libc.fclose(file)
"""


def pools(file: str, how: str, **environment: str) -> int:
    """From how many pools eight threads have allocated."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    subprocess.run([sys.executable, "-c", _THREADS, file, how], check=True, env={**known, **environment})
    with open(file) as text:
        return text.read().count("<heap ")


def is_glibc() -> bool:
    return sys.platform == "linux" and hasattr(ctypes.CDLL(None), "malloc_info")


@pytest.mark.skipif(not is_glibc(), reason="the C library is not glibc")
def test_threads_of_a_server_share_two_pools(tmp_path_factory: pytest.TempPathFactory) -> None:
    file = str(tmp_path_factory.mktemp("pools") / "pools.xml")
    assert pools(file, "apart") > 2
    assert pools(file, "shared") <= 2
    assert pools(file, "shared", MALLOC_ARENA_MAX="5") > 2


def test_serve_asks_for_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("starlette"), pytest.importorskip("uvicorn")

    def told() -> None:
        raise edgedec.UsageError("the pools are shared")

    monkeypatch.setattr("edgedec.server.memory.share_pools", told)
    assert main(["serve", "--port", "0"]) == 1
    assert "the pools are shared" in capsys.readouterr().err
