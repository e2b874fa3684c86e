"""Kernels' sources for GPUs, one target a language (`export/sources`)."""

from __future__ import annotations

from edgedec.spec import KV_FORMATS
from edgedec.targets._target import Target, Targets, Tried, lacking_packages

_KINDS = ("attention", "mlp", "moe", "ssm")
_ABOUT: dict[str, tuple[str, Tried]] = {
    "opencl": ("kernels in OpenCL C with a plan of launches", "emulated"),
    "webgpu": ("kernels in WGSL with a plan of launches", "emulated"),
    "cuda": ("kernels in CUDA C++ with a plan of launches", "emulated"),
    "metal": ("kernels in Metal with a plan of launches", "no"),
}


def _missing() -> str:
    return lacking_packages("tvm", "tvm_ffi")() or "to be launched by a program of yours"


FACTS = Targets(tuple(
    Target(
        f"tvm:{name}", "", about, _KINDS, KV_FORMATS, tried,
        needs='to make it `pip install ".[tvm]"`', missing=_missing, add=True,
    )
    for name, (about, tried) in _ABOUT.items()
))  # fmt: skip
