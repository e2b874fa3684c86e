"""libedgedec for tests: compiled once from this checkout, and the binding of examples/ctypes over it."""

from __future__ import annotations

import atexit
import os
import runpy
import shutil
import sys
import tempfile
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from edgedec.spec import ModelSpec
from edgedec.spec.newer import CHOICE_BIAS, CLAMPED, EXPERT_BIAS, GATES, SINK_LOGIT, newer

ROOT = Path(__file__).parents[1]
LIBRARY = ROOT / "kernels" / "lib"
HEADER = LIBRARY / "include" / "edgedec.h"
COMPILER = next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), None)
needs_compiler = pytest.mark.skipif(COMPILER is None or os.name == "nt", reason="no C++ compiler here")
needs_patience = pytest.mark.skipif(
    not os.environ.get("EDGEDEC_SLOW_TESTS"), reason="takes minutes: asks for EDGEDEC_SLOW_TESTS=1"
)


# Kinds of blocks and later facts that libedgedec has.
KINDS = {"attention", "conv", "delta", "mlp", "moe", "ssm"}
FACTS = {CHOICE_BIAS, CLAMPED, EXPERT_BIAS, GATES, SINK_LOGIT}


def library_runs(spec: ModelSpec) -> bool:
    """Whether libedgedec has all kinds and facts of a model."""
    return set(spec.kinds) <= KINDS and set(newer(spec)) <= FACTS


def module_at(path: Path, name: str) -> ModuleType:
    """A file of the examples as a module."""
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    made = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


c: Any = module_at(ROOT / "examples" / "ctypes" / "edgedec_c.py", "edgedec_c")


@cache
def builder() -> SimpleNamespace:
    """kernels/lib/build.py."""
    return SimpleNamespace(**runpy.run_path(str(LIBRARY / "build.py")))


@cache
def library_file() -> Path:
    """The library, compiled from this checkout; objects that are at hand are used again. Processes of tests compile one
    after the other: the second finds the objects of the first."""
    if given := os.environ.get("EDGEDEC_LIBRARY"):
        return Path(given)
    if COMPILER is None or os.name == "nt":
        pytest.skip("no C++ compiler here")
    folder = Path(tempfile.mkdtemp(prefix="edgedec-library-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    import fcntl  # Windows has none

    with (Path(tempfile.gettempdir()) / f"edgedec-library-{os.getuid()}.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        made: Path = builder().build(folder / "libedgedec.so", jobs=2)
    return made


@cache
def library() -> Any:
    """The binding's Library."""
    return c.Library(str(library_file()))


def opened(path: Path, **options: Any) -> Any:
    """A bundle opened by the library."""
    return c.Model(library(), str(path), **options)
