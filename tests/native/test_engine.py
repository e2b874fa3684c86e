"""Random models and calls in C++: rows alone and in company, and nonsense refused (`engine_fuzz.cpp`).

Every time against the library that is installed; under the sanitizers, which compile for minutes, if asked:

    EDGEDEC_SLOW_TESTS=1 EDGEDEC_FUZZ_SECONDS=600 pytest tests/native/test_engine.py
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgedec.kernels.cpu import loader

FUZZ = Path(__file__).with_name("engine_fuzz.cpp")
KERNELS = Path(__file__).parents[2] / "kernels" / "cpu"
native = SimpleNamespace(**runpy.run_path(str(KERNELS / "build.py")))
COMPILER = next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), None)
SLOW = bool(os.environ.get("EDGEDEC_SLOW_TESTS"))
SECONDS = os.environ.get("EDGEDEC_FUZZ_SECONDS", "30" if SLOW else "6")

pytestmark = pytest.mark.skipif(COMPILER is None or sys.platform == "win32", reason="no C++ compiler here")


def fuzz(program: Path, seed: int = 1) -> None:
    done = subprocess.run([program, SECONDS, str(seed)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    models, calls, with_zeros, *_ = map(int, re.findall(r"\d+", done.stdout))
    assert models > 3
    assert calls > 30
    assert with_zeros > 3


@pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")
def test_rows_and_refusals_of_the_installed_engine(tmp_path: Path) -> None:
    library = loader.path().resolve()
    command = [COMPILER, "-std=c++17", "-O1", "-pthread", "-I", KERNELS, FUZZ, library, f"-Wl,-rpath,{library.parent}"]
    subprocess.run([*command, "-o", tmp_path / "fuzz"], check=True)
    fuzz(tmp_path / "fuzz")


@pytest.mark.skipif(not SLOW, reason="compiles for minutes: asks for EDGEDEC_SLOW_TESTS=1")
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_no_sanitizer_complains(sanitizer: str, tmp_path: Path) -> None:
    """Plain C++ takes a compiler several minutes to instrument, and is what others are held to: it goes without."""
    tools = {True: native.compiler(sanitize=sanitizer), False: native.compiler()}
    units = [unit for unit in native.UNITS if unit.arch in (None, tools[True].arch)][:2]
    defines = [unit.define for unit in units]
    parts = [(path, []) for path in (*sorted(KERNELS.glob("[!u]*.cpp")), FUZZ)]
    parts += [(KERNELS / f"unit_{unit.name}.cpp", tools[True].flags(unit)) for unit in units]
    objects = []
    for path, flags in parts:
        objects.append(tmp_path / f"{path.stem}.o")
        tool = tools[path.stem != "unit_scalar"]
        subprocess.run(tool.compile(path, objects[-1], flags, defines), check=True)
    subprocess.run(tools[True].link(objects, tmp_path / "fuzz", shared=False), check=True)
    fuzz(tmp_path / "fuzz", seed=10_000)
