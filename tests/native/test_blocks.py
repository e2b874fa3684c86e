"""Mixture-of-experts and state-space blocks of the engine, in C++ (`moe_test.cpp`, `ssm_test.cpp`).

Every time against the library that is installed; under the sanitizers and on ARM, which compile for minutes, if asked:

    EDGEDEC_SLOW_TESTS=1 pytest tests/native/test_blocks.py
"""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgedec.kernels.cpu import loader

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "kernels" / "cpu"
native = SimpleNamespace(**runpy.run_path(str(KERNELS / "build.py")))
COMPILER = next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), None)
CROSS, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"
SLOW = bool(os.environ.get("EDGEDEC_SLOW_TESTS"))
TESTS = ("moe_test", "ssm_test")

pytestmark = pytest.mark.skipif(COMPILER is None or sys.platform == "win32", reason="no C++ compiler here")
needs_patience = pytest.mark.skipif(not SLOW, reason="compiles for minutes: needs EDGEDEC_SLOW_TESTS=1")


def run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "failures: 0" in done.stdout


@pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")
@pytest.mark.parametrize("test", TESTS)
def test_blocks_of_the_installed_engine(test: str, tmp_path: Path) -> None:
    library = loader.path().resolve()
    source, program = HERE / f"{test}.cpp", tmp_path / test
    command = [
        COMPILER,
        "-std=c++17",
        "-O1",
        "-pthread",
        "-I",
        KERNELS,
        source,
        library,
        f"-Wl,-rpath,{library.parent}",
    ]
    subprocess.run([*command, "-o", program], check=True)
    run(program)


@needs_patience
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_no_sanitizer_complains(sanitizer: str, tmp_path: Path) -> None:
    """Plain C++ takes a compiler several minutes to instrument: it goes without."""
    tools = {True: native.compiler(sanitize=sanitizer), False: native.compiler()}
    units = [unit for unit in native.UNITS if unit.arch in (None, tools[True].arch)][:2]
    parts = [(path, []) for path in sorted(KERNELS.glob("[!u]*.cpp"))]
    parts += [(KERNELS / f"unit_{unit.name}.cpp", tools[True].flags(unit)) for unit in units]
    objects = []
    for path, flags in parts:
        objects.append(tmp_path / f"{path.stem}.o")
        tool = tools[path.stem != "unit_scalar"]
        subprocess.run(tool.compile(path, objects[-1], flags, [unit.define for unit in units]), check=True)
    for test in TESTS:
        main = tmp_path / f"{test}.o"
        subprocess.run(tools[True].compile(HERE / f"{test}.cpp", main, [], []), check=True)
        subprocess.run(tools[True].link([*objects, main], tmp_path / test, shared=False), check=True)
        run(tmp_path / test, "30")


@needs_patience
@pytest.mark.skipif(not (shutil.which(CROSS) and shutil.which(EMULATOR)), reason=f"no {CROSS} or no {EMULATOR} here")
@pytest.mark.parametrize("test", TESTS)
def test_blocks_on_arm(test: str, tmp_path: Path) -> None:
    program = native.build(tmp_path / test, cxx=CROSS, arch="aarch64", mains=[HERE / f"{test}.cpp"])
    run(EMULATOR, "-L", "/usr/aarch64-linux-gnu", "-cpu", "max", str(program), "40")
