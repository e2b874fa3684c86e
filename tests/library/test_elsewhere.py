"""libedgedec where Python does not load it: under wine, under qemu, with musl. The tokens that Python generated, the
engine's bytes, and the main cases of the other tests, by one C++ program (`elsewhere/`) that runs here as well."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from clibrary import HEADER, LIBRARY, builder, library_file, needs_compiler, needs_patience
from replayed import HASHES, SOURCES, compare_bytes, compare_requests, link_replay, run_cases

WINE = next((path for name in ("wine64", "wine64-stable", "wine") if (path := shutil.which(name))), None)


@dataclass(frozen=True)
class Machine:
    """A target of kernels/lib/cross.py and what runs its programs here. every: 8 for one request in eight."""

    target: str
    runner: tuple[str, ...] = ()
    every: int = 1
    static: bool = False  # the program and the library in one file: there is no C library of its kind here

    @property
    def why_not(self) -> str:
        if find_spec("ziglang") is None:
            return "no zig here: pip install ziglang"
        lacking = self.runner and not shutil.which(self.runner[0])
        return f"no {self.runner[0]} here" if lacking else ""


MACHINES = [
    Machine("windows-x86-64", (WINE or "wine64",)),
    Machine("linux-arm64-musl", ("qemu-aarch64-static", "-cpu", "cortex-a57"), 20, static=True),
]


@needs_compiler
def test_here(nano: Path, tmp_path: Path) -> None:
    library, program = library_file(), tmp_path / "replay"
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{HEADER.parent}", *SOURCES, "-pthread"]
    subprocess.run(["c++", *flags, library, f"-Wl,-rpath,{library.parent}", "-o", program], check=True)
    compare_requests([program], nano, tmp_path, every=4)  # all of them are replayed by test_equality.py
    compare_bytes([program], nano, tmp_path, "f32")
    run_cases([program], nano, tmp_path)


@pytest.fixture
def wine(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Wine's environment: a prefix of its own, whose server ends with the test."""
    env = {**os.environ, "WINEPREFIX": str(tmp_path / "wine"), "WINEDEBUG": "-all", "LC_ALL": "C.UTF-8"}
    env |= {"WINEDLLOVERRIDES": "mscoree,mshtml="}  # it asks for neither
    env.pop("DISPLAY", None)
    yield env
    server = shutil.which("wineserver") or "/usr/lib/wine/wineserver64"
    if (tmp_path / "wine").is_dir() and Path(server).exists():
        subprocess.run([server, "-k"], env=env, check=False)


@needs_patience
@pytest.mark.parametrize("machine", MACHINES, ids=[machine.target for machine in MACHINES])
def test_other_machines(machine: Machine, nano: Path, tmp_path: Path, wine: dict[str, str]) -> None:
    if machine.why_not:
        pytest.skip(machine.why_not)
    program = built(machine, tmp_path)
    windows = machine.target.startswith("windows")
    env = wine if windows else None
    command = [*machine.runner, program]
    compare_requests(command, nano, tmp_path, env, machine.every)
    for kv in HASHES if machine.every == 1 else ("f32", "int4"):
        compare_bytes(command, nano, tmp_path, kv, env)
    run_cases(command, nano, tmp_path, env)


def built(machine: Machine, folder: Path) -> Path:
    """The program for a machine, and the library beside it."""
    cross = runpy.run_path(str(LIBRARY / "cross.py"))
    target = cross["TARGETS"][machine.target]
    compiler = [sys.executable, "-m", "ziglang", "c++", "-target", target.zig]
    if machine.static:
        link = ["-static", "-s"]
        made: Path = builder().build(folder / "replay", compiler, target.arch, jobs=2, mains=SOURCES, link=link)
        return made
    library = cross["build"](machine.target, folder, 2)
    assert library.stat().st_size < 3_000_000
    program: Path = library.parent / "replay.exe"
    link_replay(compiler, folder, ["-s", library.with_suffix(".lib"), "-o", program])
    return program
