"""Nano compiled for ARM tells the native engine's bytes: a whole model under qemu, call by call.

Everything that the library reads and writes lies in one piece of memory, which is handed to a process of the other
processor and taken back.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from libraries import opened
from numpy.typing import NDArray

from edgedec.bundle.locate import NANO, find
from edgedec.export.amend import add_artifact
from edgedec.runtime import ALL_LOGITS, Call, Rows, Runtime, RuntimeOptions, forward_one, open_runtime
from edgedec.runtime.trust import trusting
from edgedec.runtimes._selftest.cases import CASES, GoldenCase, run
from edgedec.runtimes._selftest.check import golden

pytest.importorskip("tvm_ffi")
pytest.importorskip("tvm")
TOOLS = ("qemu-aarch64-static", "aarch64-linux-gnu-g++", "aarch64-linux-gnu-gcc")
lacking = [tool for tool in TOOLS if shutil.which(tool) is None]
pytestmark = pytest.mark.skipif(bool(lacking), reason=f"not installed: {', '.join(lacking)}")
SLOW = "EDGEDEC_SLOW_TESTS" in os.environ
AT, SIZE, FIXED_NOREPLACE = 0x1000000000, 32 << 20, 0x100000
SOURCE = Path(__file__).with_name("run_library.c")
ARENAS: list[Arena] = []
FEW = [case for case in CASES if case.model == "ssm" or (SLOW and case.packing.zeros)]  # that of states has experts


class Arena:
    """Memory at a fixed address, given out from front to back."""

    def __init__(self) -> None:
        self.libc = libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        if libc.mmap(AT, SIZE, 3, 0x22 | FIXED_NOREPLACE, -1, 0) != AT:
            pytest.skip("the address is taken")
        self.memory = np.frombuffer((ctypes.c_uint8 * SIZE).from_address(AT), np.uint8)
        self.used = 0

    def close(self) -> None:
        self.libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self.libc.munmap(AT, SIZE)

    def take(self, size: int) -> int:
        at, self.used = self.used, self.used + -(-size // 256) * 256
        assert self.used <= SIZE
        return AT + at

    def array(self, count: int, dtype: Any) -> NDArray[Any]:
        size = count * np.dtype(dtype).itemsize
        at = self.take(size) - AT
        return self.memory[at : at + size].view(dtype)

    def copied(self, array: NDArray[Any]) -> int:
        place = self.array(array.size, array.dtype)
        place[:] = array.reshape(-1)
        return place.ctypes.data


class Foreign:
    """`Library` of the other processor: each call is a process of it. `calls`: the functions that were run."""

    def __init__(self, library: Path, threads: int) -> None:
        self.library, self.threads, self.folder, self.calls = library, threads, library.parent, list[str]()
        self.arena = ARENAS[-1]
        self.program = self.folder / "run_library"
        subprocess.run(["aarch64-linux-gnu-gcc", "-O1", "-rdynamic", "-o", self.program, SOURCE, "-ldl"], check=True)

    def function(self, name: str) -> Callable[[int], None]:
        memory = self.folder / "memory"

        def run(frame: int) -> None:
            self.arena.memory.tofile(memory)
            words = [self.library, f"__tvm_ffi_{name}", hex(frame), hex(AT), str(SIZE), memory]
            subprocess.run(
                ["qemu-aarch64-static", "-cpu", "max", "-L", "/usr/aarch64-linux-gnu", self.program, *words], check=True
            )
            self.arena.memory[:] = np.fromfile(memory, np.uint8)
            self.calls.append(name)

        return run

    def use_threads(self) -> None:
        """It has one."""


def story(runtime: Runtime, prompt: NDArray[np.int64]) -> list[NDArray[np.float32]]:
    """Logits of a prompt, of a tree of which a path is kept, of three greedy tokens."""
    cache, found = runtime.new_cache(128), []

    def logits(rows: Rows) -> NDArray[np.float32]:
        made = forward_one(runtime, Call(rows, cache, outputs=ALL_LOGITS)).logits
        assert made is not None
        found.append(made.copy())
        return made

    logits(Rows.chain(prompt, 0))
    cache.commit(range(len(prompt)))
    logits(Rows.tree([11, 12, 13], parents=[-1, 0, 0], start=cache.length))
    cache.commit([0, 2])
    token = 21
    for _ in range(3):
        token = int(logits(Rows.chain([token], cache.length)).argmax())
        cache.commit([0])
    return found


@pytest.fixture
def arena(monkeypatch: pytest.MonkeyPatch) -> Iterator[Arena]:
    """Memory that all of a runtime lies in, whose library is run by the other processor."""
    from edgedec.runtimes.tvm import artifact, host
    from edgedec.runtimes.tvm.model import Tables

    ARENAS.append(Arena())
    arena = ARENAS[-1]
    monkeypatch.setattr(host, "aligned", arena.array)
    monkeypatch.setattr(host, "Library", Foreign)
    monkeypatch.setattr(host.HostDevice, "allocate", lambda self, size: arena.take(size))
    monkeypatch.setattr(Tables, "_address", lambda self, array: arena.copied(array))
    monkeypatch.setattr(artifact, "machines_here", lambda: ["aarch64-linux", "aarch64-android"])
    yield arena
    ARENAS.pop().close()


@pytest.mark.parametrize("machine", ["aarch64-linux", "aarch64-android"] if SLOW else ["aarch64-android"])
def test_a_whole_model_on_arm(machine: str, arena: Arena, tmp_path: Path) -> None:
    folder = tmp_path / "nano"
    shutil.copytree(find(NANO), folder)
    bundle = add_artifact(folder, f"tvm:{machine}")
    native = open_runtime("native", bundle, RuntimeOptions(1, "f32"))
    with trusting(True):
        compiled: Any = open_runtime("tvm", bundle, RuntimeOptions(1, "f32"))
    assert compiled.capabilities.isa == machine
    prompt = np.arange(24) * 7 % 1000 + 5
    expected, found = story(native, prompt), story(compiled, prompt)
    assert [a.tobytes() == b.tobytes() for a, b in zip(expected, found, strict=True)] == [True] * 5
    assert compiled._library.calls.count("run") == 5


@pytest.mark.parametrize("machine", ["aarch64-linux", "aarch64-linux-i8mm"] if SLOW else ["aarch64-linux-i8mm"])
@pytest.mark.parametrize("case", FEW, ids=lambda case: case.name)
def test_other_kinds_on_arm(case: GoldenCase, machine: str, arena: Arena, tmp_path: Path) -> None:
    """Experts, states and zero points; whole states are advanced there too."""
    runtime: Any = opened(case, tmp_path, machine, threads=1)
    assert run(runtime) == golden()[case.name].result
    assert len(runtime._library.calls) >= 3
