"""Random models, calls and views in C++: rows alone and in company, and nonsense refused (`*_fuzz.cpp`).

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
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgedec.kernels.cpu import loader

FUZZ = Path(__file__).with_name("engine_fuzz.cpp")
VIEWS = FUZZ.with_name("views_fuzz.cpp")
KERNELS = Path(__file__).parents[2] / "kernels" / "cpu"
native = SimpleNamespace(**runpy.run_path(str(KERNELS / "build.py")))
COMPILER = next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), None)
SLOW = bool(os.environ.get("EDGEDEC_SLOW_TESTS"))
SECONDS = os.environ.get("EDGEDEC_FUZZ_SECONDS", "30" if SLOW else "6")

pytestmark = pytest.mark.skipif(COMPILER is None or sys.platform == "win32", reason="no C++ compiler here")


def fuzz(program: Path, folder: Path, seed: int = 1) -> list[int]:
    """The numbers that a fuzzer ends with."""
    done = subprocess.run([program, SECONDS, str(seed), folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return [int(number) for number in re.findall(r"\d+", done.stdout)]


def check_engine(numbers: list[int]) -> None:
    models, calls, with_zeros, *_ = numbers
    assert models > 3
    assert calls > 30
    assert with_zeros > 3


def check_views(numbers: list[int]) -> None:
    """Views were seen and refused, of caches that were changed and lay on disk."""
    models, calls, views, refused, changes, on_disk, _ = numbers
    assert models > 3
    assert views > calls / 4 > 6
    assert min(refused, changes) > 6
    assert on_disk > 0


FUZZERS = [(FUZZ, check_engine), (VIEWS, check_views)]


@pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")
@pytest.mark.parametrize(("source", "check"), FUZZERS)
def test_the_installed_engine(tmp_path: Path, source: Path, check: Callable[[list[int]], None]) -> None:
    library = loader.path().resolve()
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
    subprocess.run([*command, "-o", tmp_path / "fuzz"], check=True)
    check(fuzz(tmp_path / "fuzz", tmp_path))


@pytest.mark.skipif(not SLOW, reason="compiles for minutes: asks for EDGEDEC_SLOW_TESTS=1")
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_no_sanitizer_complains(sanitizer: str, tmp_path: Path) -> None:
    """Plain C++ takes a compiler several minutes to instrument, and is what others are held to: it goes without."""
    tools = {True: native.compiler(sanitize=sanitizer), False: native.compiler()}
    units = [unit for unit in native.UNITS if unit.arch in (None, tools[True].arch)][:2]
    defines = [unit.define for unit in units]
    parts = [(path, []) for path in (*sorted(KERNELS.glob("[!u]*.cpp")), FUZZ, VIEWS)]
    parts += [(KERNELS / f"unit_{unit.name}.cpp", tools[True].flags(unit)) for unit in units]
    objects = {}
    for path, flags in parts:
        objects[path] = tmp_path / f"{path.stem}.o"
        tool = tools[path.stem != "unit_scalar"]
        subprocess.run(tool.compile(path, objects[path], flags, defines), check=True)
    for source, check in FUZZERS:
        linked = [made for path, made in objects.items() if path == source or path not in (FUZZ, VIEWS)]
        subprocess.run(tools[True].link(linked, tmp_path / "fuzz", shared=False), check=True)
        check(fuzz(tmp_path / "fuzz", tmp_path, seed=10_000))
