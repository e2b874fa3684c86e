"""Machines that run a language's kernels, by packages of PyPI: pyopencl, wgpu; or a compiler that emulates CUDA."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Protocol

from numpy.typing import NDArray

from edgedec.errors import RuntimeUnavailable
from edgedec.runtimes.tvm.plans import LaunchPlan

_MODULES = {"opencl": "opencl", "webgpu": "webgpu", "cuda": "emulated_cuda"}
_PACKAGES = {"opencl": "pip install pyopencl pocl-binary-distribution", "webgpu": "pip install wgpu"}


class MachineMissing(RuntimeUnavailable):
    """Nothing here runs kernels of the language."""


class SourceMachine(Protocol):
    """A device with a language's kernels compiled. Arrays are by name."""

    @property
    def name(self) -> str:
        """What it is, in words."""

    def allocate(self, name: str, size: int) -> None:
        """Make an array of `size` bytes, full of zeros."""

    def write(self, name: str, array: NDArray[Any]) -> None:
        """Fill an array from its beginning."""

    def read(self, name: str, array: NDArray[Any]) -> None:
        """Fill `array` from an array's beginning."""

    def launch(self, kernel: str, groups: tuple[int, int], arrays: tuple[str, ...]) -> None:
        """Run a kernel."""


def machine_for(language: str, source: str, plan: LaunchPlan) -> SourceMachine:
    """The first device here that runs the language."""
    module = _MODULES.get(language)
    if module is None:
        raise MachineMissing(f"--language {language}: nothing here runs it; there are: {', '.join(_MODULES)}")
    try:
        found: SourceMachine = import_module(f"edgedec.testing.sources.{module}").open(source, plan)
        return found
    except ModuleNotFoundError as error:
        raise MachineMissing(f"--language {language}: needs {error.name}: {_PACKAGES.get(language, '')}") from None
