"""NVIDIA's run-time compiler by ctypes: `engine.cu` to cubins and PTX, and ptxas' report of registers and spills."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import sys
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from edgedec.kernels.cuda.sources import HERE, SOURCE, CudaBuildFailed

_OPTIONS = ("--fmad=false", "--std=c++17", "-default-device", "--ptxas-options=-v")
_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")


@dataclass(frozen=True)
class KernelUse:
    """Resources of a kernel on one architecture: registers of a thread, bytes of stack, bytes spilled."""

    registers: int = 0
    stack: int = 0
    spills: int = 0


@dataclass(frozen=True)
class Compiled:
    code: bytes
    kernels: dict[str, KernelUse]


def why_not() -> str | None:
    """None if NVRTC can be used, else the reason in one line."""
    try:
        _library()
    except CudaBuildFailed as error:
        return str(error)
    return None


@cache
def _library() -> ctypes.CDLL:
    pattern = "nvrtc64_*.dll" if sys.platform == "win32" else "libnvrtc.so.*"
    found = [path for folder in _folders() for path in sorted(folder.glob(pattern)) if ".alt." not in path.name]
    if not found:
        raise CudaBuildFailed('no NVRTC, the compiler of its kernels: pip install "edgedec-runtime[cuda]"')
    try:
        # NVRTC does not search its own folder for these libraries.
        for builtins in found[-1].parent.glob("libnvrtc-builtins.so.*"):
            ctypes.CDLL(str(builtins))
        return ctypes.CDLL(str(found[-1]))
    except OSError as error:
        raise CudaBuildFailed(f"{found[-1]}: {error}") from None


def _folders() -> list[Path]:
    """The library folders of the wheel: nvidia/cu13/lib, or nvidia/cuda_nvrtc/lib before 13; bin on Windows."""
    try:
        spec = importlib.util.find_spec("nvidia")
    except ValueError:
        spec = None
    places = list(spec.submodule_search_locations or []) if spec else []
    return [folder for place in places for name in ("*/lib", "*/bin*") for folder in sorted(Path(place).glob(name))]


def version() -> str:
    """The compiler's version, such as 13.0."""
    lib, major, minor = _library(), c_int(), c_int()
    _check(lib.nvrtcVersion(byref(major), byref(minor)), lib)
    return f"{major.value}.{minor.value}"


def architectures() -> list[int]:
    """The architectures that it compiles for, such as 90."""
    lib, count = _library(), c_int()
    _check(lib.nvrtcGetNumSupportedArchs(byref(count)), lib)
    found = (c_int * count.value)()
    _check(lib.nvrtcGetSupportedArchs(found), lib)
    return list(found)


def compile_for(architecture: str, source: Path = SOURCE) -> Compiled:
    """The kernels for an architecture: a cubin for sm_90, PTX for compute_90."""
    lib, program = _library(), c_void_p()
    _check(lib.nvrtcCreateProgram(byref(program), source.read_bytes(), source.name.encode(), 0, None, None), lib)
    options = [f"--gpu-architecture={architecture}", f"--include-path={HERE}", *_OPTIONS]
    given = (c_char_p * len(options))(*(option.encode() for option in options))
    code = lib.nvrtcCompileProgram(program, len(options), given)
    log = _text(lib, program, "ProgramLog").decode(errors="replace").rstrip("\0")
    try:
        if code:
            lines = log.splitlines() or [f"NVRTC error {code}"]
            raise CudaBuildFailed(next((line for line in lines if "error" in line), lines[0]))
        return Compiled(_text(lib, program, "PTX" if architecture.startswith("compute") else "CUBIN"), uses(log))
    finally:
        lib.nvrtcDestroyProgram(byref(program))


def uses(log: str) -> dict[str, KernelUse]:
    """The report of ptxas -v for each kernel."""
    found: dict[str, KernelUse] = {}
    name, stack, spills = "", 0, 0
    for line in log.splitlines():
        if entry := _ENTRY.search(line):
            name, stack, spills = entry[1], 0, 0
        elif frame := _STACK.search(line):
            stack, spills = int(frame[1]), int(frame[2]) + int(frame[3])
        elif (used := _USED.search(line)) and name:
            found[name], name = KernelUse(int(used[1]), stack, spills), ""
    return found


def _text(lib: ctypes.CDLL, program: c_void_p, what: str) -> bytes:
    size = c_size_t()
    _check(getattr(lib, f"nvrtcGet{what}Size")(program, byref(size)), lib)
    data = ctypes.create_string_buffer(size.value)
    _check(getattr(lib, f"nvrtcGet{what}")(program, data), lib)
    return data.raw[: size.value]


def _check(code: int, lib: ctypes.CDLL) -> None:
    if code:
        lib.nvrtcGetErrorString.restype = c_char_p
        raise CudaBuildFailed(f"NVRTC: {lib.nvrtcGetErrorString(c_int(code)).decode()}")
