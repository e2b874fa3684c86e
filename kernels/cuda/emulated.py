"""The device that runs kernels on the CPU (`emulate.h`): for tests on machines without a GPU; slow."""

from __future__ import annotations

import ctypes
from collections.abc import Collection
from copy import copy
from functools import cache
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from edgedec.kernels.cuda import build
from edgedec.kernels.cuda.sources import CudaBuildFailed
from edgedec.kernels.device.interface import MOST_THREADS, WIDE, DeviceError, NotedLaunches


class Emulated(NotedLaunches):
    """`Device` on the CPU. `launches` counts what was run. reverse: lanes and warps run in the opposite order; library:
    other kernels than the engine's."""

    name, has_matrix, fused_bytes, shared_bytes, sizes = "emulated", True, 48 << 10, 227 << 10, WIDE
    most_threads, driver, kernels = MOST_THREADS, "", ""
    variants: tuple[str, ...] = ("matrix", "fused")

    def __init__(self, reverse: bool = False, library: Path | None = None) -> None:
        super().__init__()
        self._lib, self._reverse, self.launches = _library(library), reverse, 0

    def without(self, parts: Collection[str]) -> Emulated:
        """The device without tensor cores, or without fused preparation of rows."""
        other = copy(self)
        other.has_matrix, other.fused_bytes = "matrix" not in parts, 0 if "fused" in parts else self.fused_bytes
        return other

    def allocate(self, size: int) -> int:
        self.outside("memory is taken")
        found: int | None = self._lib.ed_cuda_allocate(size)
        if not found:
            raise MemoryError(f"no {size} bytes for the emulated device")
        return found

    def free(self, address: int) -> None:
        self._lib.ed_cuda_free(address)

    def write(self, address: int, array: NDArray[Any]) -> None:
        self.outside("memory is written")
        ctypes.memmove(address, array.ctypes.data, array.nbytes)

    def read(self, address: int, array: NDArray[Any]) -> None:
        self.outside("memory is read")
        ctypes.memmove(array.ctypes.data, address, array.nbytes)

    def copy(self, to: int, source: int, size: int) -> None:
        self.outside("memory is copied")
        ctypes.memmove(to, source, size)

    def _run(self, kernel: str, grid: tuple[int, int, int], threads: int, shared: int, arguments: bytes) -> None:
        if shared > self.shared_bytes:
            has = f"{shared} bytes, of {self.shared_bytes}"
            raise DeviceError(f"emulated device: {kernel}: more shared memory than a block has: {has}")
        self.launches += 1
        self._lib.ed_cuda_order(int(self._reverse))
        sizes = (ctypes.c_uint * 3)(*grid)
        if self._lib.ed_cuda_launch(kernel.encode(), sizes, threads, shared, arguments, len(arguments)):
            raise DeviceError(f"emulated device: {self._lib.ed_cuda_error().decode()}")

    def synchronize(self) -> None:
        """Launches have run when they return."""
        self.outside("they are waited for")


def why_not() -> str | None:
    """None if kernels can be emulated here, else the reason in one line."""
    try:
        _library()
    except (OSError, CudaBuildFailed) as error:
        return str(error)
    return None


@cache
def _library(file: Path | None = None) -> ctypes.CDLL:
    lib = ctypes.CDLL(str(file or build.emulation()))
    u64, p = ctypes.c_uint64, ctypes.c_void_p
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "ed_cuda_allocate": (p, [u64]),
        "ed_cuda_free": (None, [p]),
        "ed_cuda_order": (None, [ctypes.c_int]),
        "ed_cuda_error": (ctypes.c_char_p, []),
        "ed_cuda_has": (ctypes.c_int, [ctypes.c_char_p]),
        "ed_cuda_launch": (ctypes.c_int, [ctypes.c_char_p, p, ctypes.c_uint, u64, ctypes.c_char_p, u64]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib
