"""The NVIDIA driver's library by ctypes: errors, and facts of driver and GPUs."""

from __future__ import annotations

import ctypes
import re
import sys
from ctypes import byref, c_char_p, c_int
from functools import cache
from pathlib import Path

from edgedec.kernels.device.interface import DeviceError

_MAJOR, _MINOR = 75, 76
_OUT_OF_MEMORY, _NO_DEVICE = 2, 100
_OLDEST = 13000  # the version of CUDA whose compiler makes the kernels (NVRTC, in nvrtc.py)
_VERSION = re.compile(r"\d+\.\d+(\.\d+)?")


@cache
def libcuda() -> ctypes.CDLL:
    """The library, started; DeviceError if there is none or it finds no GPU."""
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        lib = ctypes.CDLL(name)
    except OSError:
        raise DeviceError(f"no NVIDIA driver ({name})") from None
    code = lib.cuInit(0)
    if code == _NO_DEVICE:
        raise DeviceError("no NVIDIA GPU: the driver finds none, or CUDA_VISIBLE_DEVICES hides it")
    if code:
        raise DeviceError(f"GPU: starting the driver: {_said(lib, code)} (CUDA error {code})")
    return lib


def check(code: int, what: str) -> None:
    """Raise DeviceError (MemoryError for a lack of memory) unless the code is success."""
    if not code:
        return
    said = _said(libcuda(), code)
    if code == _OUT_OF_MEMORY:
        raise MemoryError(f"GPU: {what}: {said}")
    raise DeviceError(f"GPU: {what}: {said} (CUDA error {code})")


def _said(lib: ctypes.CDLL, code: int) -> str:
    text = c_char_p()
    lib.cuGetErrorString(code, byref(text))
    return (text.value or b"unknown error").decode()


def attribute(which: int, device: int) -> int:
    """An attribute of a GPU."""
    value = c_int()
    check(libcuda().cuDeviceGetAttribute(byref(value), which, device), "reading an attribute")
    return value.value


def capability(device: int) -> tuple[int, int]:
    """A GPU's compute capability."""
    return attribute(_MAJOR, device), attribute(_MINOR, device)


def too_old() -> str | None:
    """Why the driver cannot load this engine's kernels, with advice; None if it can."""
    if _cuda_version() >= _OLDEST:
        return None
    kernels = "older than the kernels, which are of CUDA 13.0"
    return f"the NVIDIA driver ({driver_version()}) is {kernels}: install driver 580 or later"


def _cuda_version() -> int:
    """12080 is 12.8."""
    version = c_int()
    check(libcuda().cuDriverGetVersion(byref(version)), "reading the driver's version")
    return version.value


def driver_version() -> str:
    """The driver's version: of CUDA and, if available, its own."""
    version = _cuda_version()
    try:
        own = _VERSION.search(Path("/proc/driver/nvidia/version").read_text("utf-8"))
    except OSError:
        own = None
    return f"CUDA {version // 1000}.{version % 1000 // 10}" + (f", {own[0]}" if own else "")
