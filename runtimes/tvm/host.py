"""The memory of compiled libraries: aligned, on the host; and the library itself, opened without the compiler."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleCorrupt
from edgedec.extras import install_command
from edgedec.kernels.device.interface import NARROW, DeviceError, Recorded

_ALIGN = 256
_INT = 1  # kTVMFFIInt
_LIBRARIES = {"tvm_ffi": "tvm_ffi", "tvm": "tvm_runtime"}
_teams = threading.local()
_MOVE, _ADVANCE = Struct("@2P2i"), Struct("@4P6i")  # `structs.move`, `state_structs.advance`


class _Any(ctypes.Structure):
    """A value as TVM's functions take it (`TVMFFIAny`): an integer."""

    _fields_ = (("type", ctypes.c_int32), ("padding", ctypes.c_int32), ("value", ctypes.c_int64))


class _Bytes(ctypes.Structure):
    _fields_ = (("data", ctypes.c_char_p), ("size", ctypes.c_size_t))


def missing() -> str | None:
    """Why libraries cannot be opened here; None if they can."""
    for package, stem in _LIBRARIES.items():
        if find_spec(package) is None:
            return f"{package} is not installed: {install_command('tvm')}"
        if _file(package, stem) is None:
            return f"{package} has no {stem}"
    return None


def _file(package: str, stem: str) -> Path | None:
    """A shared library of a package. The package is not imported, because tvm_ffi imports torch, and TVM its
    compiler."""
    spec = find_spec(package)
    folders = [Path(folder) / "lib" for folder in (spec.submodule_search_locations or ())] if spec else []
    names = (f"lib{stem}.so", f"lib{stem}.dylib", f"{stem}.dll")
    return next((folder / name for folder in folders for name in names if (folder / name).is_file()), None)


class Library:
    """A compiled library: functions with one address argument. TVM's runtime provides its thread pool."""

    def __init__(self, path: Path, threads: int) -> None:
        # Threads are not pinned to cores, because other programs use the cores, too.
        os.environ.setdefault("TVM_BIND_THREADS", "0")
        self._ffi, runtime = (
            ctypes.CDLL(str(_file(package, stem)), ctypes.RTLD_GLOBAL) for package, stem in _LIBRARIES.items()
        )
        self.threads, self._path = threads, path
        try:
            self._library = ctypes.CDLL(str(path))
            for name in ("TVMBackendParallelLaunch", "TVMBackendParallelBarrier") if threads > 1 else ():
                place = ctypes.c_void_p.in_dll(self._library, f"__{name}")
                place.value = ctypes.cast(getattr(runtime, name), ctypes.c_void_p).value
        except (OSError, ValueError, AttributeError) as error:
            raise BundleCorrupt(f"{path}: cannot be loaded: {' '.join(str(error).split())[-200:]}") from None

    def function(self, name: str) -> Callable[[int], None]:
        """A function of the library."""
        try:
            found = self._library[f"__tvm_ffi_{name}"]
        except AttributeError:
            raise BundleCorrupt(f"{self._path}: has no function {name}; make it again with edgedec add") from None
        found.restype = ctypes.c_int

        def call(address: int) -> None:
            result = _Any()
            if found(None, ctypes.byref(_Any(_INT, 0, address)), 1, ctypes.byref(result)):
                raise DeviceError(f"{self._path}: {name} failed")

        return call

    def use_threads(self) -> None:
        """Set the size of the calling thread's pool; each calling thread has its own."""
        if self.threads == 1 or getattr(_teams, "size", 0) == self.threads:
            return
        name, function, result = b"runtime.config_threadpool", ctypes.c_void_p(), _Any()
        self._ffi.TVMFFIFunctionGetGlobal(ctypes.byref(_Bytes(name, len(name))), ctypes.byref(function))
        arguments = (_Any * 2)(_Any(_INT, 0, 1), _Any(_INT, 0, self.threads))
        if not function or self._ffi.TVMFFIFunctionCall(function, arguments, 2, ctypes.byref(result)):
            raise DeviceError(f"TVM's runtime refuses {self.threads} threads")
        _teams.size = self.threads


class HostDevice:
    """A `Device` in the host's memory; the library has the kernels that move slots and advance states."""

    name, sizes, has_matrix, fused_bytes, shared_bytes, most_threads = "cpu", NARROW, False, 0, 0, 0

    def __init__(self, library: Library) -> None:
        self._held: dict[int, NDArray[np.uint8]] = {}
        self._library = library
        self._kernels = dict[str, Callable[[int], None]]()

    def allocate(self, size: int) -> int:
        memory = np.empty(size + _ALIGN, np.uint8)
        at = -(-memory.ctypes.data // _ALIGN) * _ALIGN
        self._held[at] = memory
        return at

    def free(self, address: int) -> None:
        self._held.pop(address, None)

    def free_bytes(self) -> int:
        """Not used for the host's memory."""
        return 0

    def write(self, address: int, array: NDArray[Any]) -> None:
        ctypes.memmove(address, array.ctypes.data, array.nbytes)

    def read(self, address: int, array: NDArray[Any]) -> None:
        ctypes.memmove(array.ctypes.data, address, array.nbytes)

    def copy(self, to: int, source: int, size: int) -> None:
        ctypes.memmove(to, source, size)

    def launch(self, kernel: str, grid: tuple[int, int, int], threads: int, shared: int, arguments: bytes) -> None:
        if kernel == "move_slots":
            *words, _ = _MOVE.unpack(arguments)
            words.append(grid[0])
        elif kernel == "ssm_advance":
            *words, _ = _ADVANCE.unpack(arguments)
        else:
            raise DeviceError(f"no kernel {kernel} in compiled libraries")
        if kernel not in self._kernels:
            self._kernels[kernel] = self._library.function(kernel)
        table = aligned(len(words), np.int64)
        table[:] = words
        self._kernels[kernel](table.ctypes.data)

    def prepare(self, kernel: str, shared: int) -> None:
        """Nothing is recorded here."""

    def record(self, launches: Callable[[], None]) -> Recorded:
        raise DeviceError("nothing is recorded on the host")

    def synchronize(self) -> None:
        """Launches have run when they return."""


def aligned(count: int, dtype: Any) -> NDArray[Any]:
    """A new array whose address is a multiple of 64."""
    size = count * np.dtype(dtype).itemsize
    memory = np.empty(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype)


def zeros(count: int, dtype: Any) -> NDArray[Any]:
    """As `aligned`, cleared."""
    array = aligned(count, dtype)
    array[:] = 0
    return array
