"""Libraries compiled ahead of time, one target a kind of processor (`export/artifacts/tvm.py`)."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable
from importlib.util import find_spec

from edgedec.runtime.machines import machines_here
from edgedec.spec import KV_FORMATS
from edgedec.targets._target import Target, Targets, Tried, lacking_packages

_KINDS = ("attention", "mlp", "moe", "ssm")
_NATIVE = "a C++ compiler to link"
_ABOUT: dict[str, tuple[str, Tried, str]] = {
    "x86-64-v3": ("compiled for AVX2", "native", _NATIVE),
    "x86-64-v4": ("compiled for AVX-512 VNNI", "native", _NATIVE),
    "aarch64-linux": ("compiled for ARM with dot products", "emulated", "aarch64-linux-gnu-g++"),
    "aarch64-linux-i8mm": ("compiled for ARM with matrix products", "emulated", "aarch64-linux-gnu-g++"),
    "aarch64-android": ("compiled for Android", "emulated", "the NDK's clang++ or ziglang"),
}


def _missing(machine: str) -> Callable[[], str | None]:
    def missing() -> str | None:
        lacking = lacking_packages("tvm", "tvm_ffi")()
        if lacking is not None or machine in machines_here():
            return lacking
        return f"this machine is {platform.machine()} without what {machine} has"

    return missing


def _unmade(machine: str, linker: str) -> Callable[[], str | None]:
    """The programs are those of `export/compiled/machines.py`, which only TVM can import."""
    arm = ("aarch64-linux-gnu-g++",)
    programs = {_NATIVE: ("c++", "g++", "clang++")}.get(linker, arm)
    if machine == "aarch64-android":
        programs = ("aarch64-linux-android-clang++", "zig", *arm)

    def unmade() -> str | None:
        here = any(map(shutil.which, programs)) or ("zig" in programs and find_spec("ziglang") is not None)
        return None if here else f"{linker} is not installed"

    return unmade


FACTS = Targets(tuple(
    Target(
        f"tvm:{name}", "tvm", about, _KINDS, KV_FORMATS, tried,
        needs=f'`pip install ".[tvm]"`; to make it {linker}', missing=_missing(name), unmade=_unmade(name, linker),
        add=True,
    )
    for name, (about, tried, linker) in _ABOUT.items()
))  # fmt: skip
