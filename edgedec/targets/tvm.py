"""Libraries compiled ahead of time, one target a kind of processor (`export/artifacts/tvm.py`)."""

from __future__ import annotations

import platform
from collections.abc import Callable

from edgedec.runtime.machines import machines_here
from edgedec.spec import KV_FORMATS
from edgedec.targets.target import Target, Tried, lacking_packages

_KINDS = ("attention", "mlp", "moe", "ssm")
_ABOUT: dict[str, tuple[str, Tried, str]] = {
    "x86-64-v3": ("compiled for AVX2", "native", "a C++ compiler to link"),
    "x86-64-v4": ("compiled for AVX-512 VNNI", "native", "a C++ compiler to link"),
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


TARGETS = tuple(
    Target(
        f"tvm:{name}", "tvm", about, _KINDS, KV_FORMATS, tried,
        needs=f'`pip install ".[tvm]"`; to make it {linker}', missing=_missing(name), add=True,
    )
    for name, (about, tried, linker) in _ABOUT.items()
)  # fmt: skip
