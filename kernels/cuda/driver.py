"""A GPU through its driver alone: libcuda by ctypes, cubins that were compiled at build time."""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Callable, Collection
from copy import copy
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from edgedec.kernels.cuda import captures, first_use, library
from edgedec.kernels.cuda.handles import Handles, Use
from edgedec.kernels.cuda.library import attribute, check
from edgedec.kernels.cuda.sources import HERE, cubin_name, stale
from edgedec.kernels.device.interface import MOST_THREADS, WIDE, DeviceError, Recorded

CUBINS = "EDGEDEC_CUDA_CUBINS"  # a folder of kernels that were compiled elsewhere
_SHARED, _PROCESSORS, _CLOCK_KHZ, _BUS_BITS = 97, 16, 36, 37
_DYNAMIC_SHARED = 8  # a function's attribute: the most dynamic shared memory it may be given
_REGISTERS = 4  # a function's attribute: registers of a thread
_RELAXED = 2  # a capture mode: other threads may call functions that could wait for the GPU
_FREELY_GIVEN = 48 << 10
_PINNED = 1 << 22


def why_not(number: int = 0) -> str | None:
    """None if there is such a GPU and this engine has kernels for it, else the reason in one line."""
    try:
        count = c_int()
        check(library.libcuda().cuDeviceGetCount(byref(count)), "counting GPUs")
        if not count.value:
            return "no NVIDIA GPU"
        if number >= count.value:
            return f"no GPU {number}: the driver knows {count.value}, from 0 on"
        old = library.too_old()
        if old is not None:
            return old
        return _why_no_kernels(library.capability(number))
    except DeviceError as error:
        return str(error)


def kernels_for(capability: tuple[int, int]) -> Path:
    """The engine's file for a compute capability: of EDGEDEC_CUDA_CUBINS alone, if that is set; else of the
    installation, else compiled now (`first_use`)."""
    if named := os.environ.get(CUBINS):
        return kernels_in(Path(named), capability)
    try:
        return kernels_in(HERE / "cubins", capability)
    except DeviceError:
        return first_use.compiled(capability)


def _why_no_kernels(capability: tuple[int, int]) -> str | None:
    """Why there are no kernels for a compute capability, and none can be compiled; None otherwise. Compiles nothing."""
    named = os.environ.get(CUBINS)
    try:
        kernels_in(Path(named) if named else HERE / "cubins", capability)
    except DeviceError as error:
        why = None if named else first_use.why_not(capability)
        return str(error) if named else f"kernels for its GPU are still to be compiled: {why}" if why else None
    return None


def kernels_in(folder: Path, capability: tuple[int, int]) -> Path:
    """The file of a folder for a compute capability: a cubin of its major version, else PTX that the driver
    compiles."""
    if stale(folder):
        raise DeviceError(f"kernels in {folder} are of other sources: python -m edgedec.kernels.cuda.build")
    major, minor = capability
    for below in range(minor, -1, -1):
        path = folder / cubin_name(f"sm_{major}{below}")
        if path.is_file():
            return path
    ptx = sorted((p for p in folder.glob("engine.compute_*.ptx")), key=_version)
    fitting = [path for path in ptx if _version(path) <= 10 * major + minor]
    if fitting:
        return fitting[-1]
    raise DeviceError(
        f"no kernels for compute capability {major}.{minor} in {folder}: python -m edgedec.kernels.cuda.build "
        f"--arch sm_{major}{minor}"
    )


def _version(path: Path) -> int:
    return int(path.name.split("_")[1].split(".")[0])


class Gpu:
    """`Device` number `number` of the driver. Everything goes through one stream."""

    has_matrix, fused_bytes, most_threads, sizes = True, 48 << 10, MOST_THREADS, WIDE
    variants: tuple[str, ...] = ("matrix", "fused")

    def __init__(self, number: int = 0) -> None:
        self._lib, self.number, self.driver = library.libcuda(), number, library.driver_version()
        name = ctypes.create_string_buffer(256)
        check(self._lib.cuDeviceGetName(name, len(name), number), f"opening GPU {number}")
        self.capability, self.name = library.capability(number), name.value.decode()
        self.processors = attribute(_PROCESSORS, number)
        self.shared_bytes = attribute(_SHARED, number)
        image = kernels_for(self.capability).read_bytes() + b"\0"
        self.kernels = hashlib.sha256(image).hexdigest()
        self._handles = Handles(number, image, _PINNED)
        self._use, self._enter = Use(self._handles), self._handles.enter
        self._module, self._stream, self._pinned = self._handles.module, self._handles.stream, self._handles.pinned
        self._functions: dict[str, c_void_p] = {}
        self._shared: dict[str, int] = {}

    def without(self, parts: Collection[str]) -> Gpu:
        """The GPU without tensor cores, or without fused preparation of rows."""
        other = copy(self)
        other.has_matrix, other.fused_bytes = "matrix" not in parts, 0 if "fused" in parts else self.fused_bytes
        return other

    def allocate(self, size: int) -> int:
        self._enter()
        found = c_uint64()
        check(self._lib.cuMemAlloc_v2(byref(found), c_size_t(size)), f"taking {size} bytes")
        self._handles.took()
        return found.value

    def free(self, address: int) -> None:
        """Deferred during a recording, which a free would abort; the garbage collector may call this at any time."""
        if captures.defer(lambda: self.free(address)):
            return
        self._enter()
        self._lib.cuMemFree_v2(c_uint64(address))
        self._handles.gave()

    def free_bytes(self) -> int:
        """Free bytes from the driver, with all programs counted."""
        self._enter()
        free, whole = c_size_t(), c_size_t()
        check(self._lib.cuMemGetInfo_v2(byref(free), byref(whole)), "asking for free memory")
        return free.value

    def write(self, address: int, array: NDArray[Any]) -> None:
        self._enter()
        # After this point in the stream, earlier copies no longer use the pinned memory.
        self.synchronize()
        source = c_void_p(array.ctypes.data)
        if array.nbytes <= _PINNED:
            ctypes.memmove(self._pinned.value or 0, array.ctypes.data, array.nbytes)
            source = self._pinned
        # In this stream: a copy from pageable memory without a stream returns before it is done, and later launches do
        # not wait for it.
        size = c_size_t(array.nbytes)
        check(self._lib.cuMemcpyHtoDAsync_v2(c_uint64(address), source, size, self._stream), "copying to the GPU")
        if array.nbytes > _PINNED:
            self.synchronize()

    def read(self, address: int, array: NDArray[Any]) -> None:
        self._enter()
        data, size = c_void_p(array.ctypes.data), c_size_t(array.nbytes)
        check(self._lib.cuMemcpyDtoHAsync_v2(data, c_uint64(address), size, self._stream), "copying from the GPU")
        self.synchronize()

    def copy(self, to: int, source: int, size: int) -> None:
        self._enter()
        code = self._lib.cuMemcpyDtoDAsync_v2(c_uint64(to), c_uint64(source), c_size_t(size), self._stream)
        check(code, "copying on the GPU")

    def launch(self, kernel: str, grid: tuple[int, int, int], threads: int, shared: int, arguments: bytes) -> None:
        data = ctypes.create_string_buffer(arguments, len(arguments))
        given = (c_void_p * 1)(ctypes.addressof(data))
        sizes = [c_uint(n) for n in (*grid, threads, 1, 1, shared)]
        function = self._function(kernel, shared)
        check(self._lib.cuLaunchKernel(function, *sizes, self._stream, given, None), f"launching {kernel}")

    def _function(self, kernel: str, shared: int) -> c_void_p:
        if kernel not in self._functions:
            found = c_void_p()
            check(self._lib.cuModuleGetFunction(byref(found), self._module, kernel.encode()), f"kernel {kernel}")
            self._functions[kernel] = found
        if shared > self._shared.get(kernel, _FREELY_GIVEN):
            code = self._lib.cuFuncSetAttribute(self._functions[kernel], _DYNAMIC_SHARED, c_int(shared))
            check(code, f"{shared} bytes of shared memory for {kernel} (this GPU has {self.shared_bytes})")
            self._shared[kernel] = shared
        return self._functions[kernel]

    def record(self, launches: Callable[[], None]) -> Recorded:
        self._enter()
        graph = c_void_p()
        captures.begin()
        try:
            # Relaxed mode: other threads may allocate memory meanwhile; their frees are deferred.
            check(self._lib.cuStreamBeginCapture_v2(self._stream, _RELAXED), "recording launches")
            try:
                launches()
            finally:
                code = self._lib.cuStreamEndCapture(self._stream, byref(graph))
        finally:
            captures.end()
            self._enter()
        check(code, "recording launches")
        return _Graph(self, graph)

    def prepare(self, kernel: str, shared: int) -> None:
        """Load a kernel now: drivers load it at first use and may wait for the GPU then."""
        self._enter()
        registers = c_int()
        code = self._lib.cuFuncGetAttribute(byref(registers), _REGISTERS, self._function(kernel, shared))
        check(code, f"loading {kernel}")

    def synchronize(self) -> None:
        self._enter()
        check(self._lib.cuStreamSynchronize(self._stream), "running kernels")

    def timed(self, work: Callable[[], None]) -> float:
        """GPU seconds of the launches of `work`."""
        self._enter()
        events = [c_void_p(), c_void_p()]
        for event in events:
            check(self._lib.cuEventCreate(byref(event), 0), "making an event")
        check(self._lib.cuEventRecord(events[0], self._stream), "noting a time")
        work()
        check(self._lib.cuEventRecord(events[1], self._stream), "noting a time")
        self.synchronize()
        ms = ctypes.c_float()
        check(self._lib.cuEventElapsedTime(byref(ms), *events), "reading a time")
        for event in events:
            self._lib.cuEventDestroy_v2(event)
        return ms.value / 1e3


class _Graph:
    """Recorded launches, instantiated."""

    def __init__(self, gpu: Gpu, graph: c_void_p) -> None:
        self._gpu, self._run = gpu, c_void_p()
        code = gpu._lib.cuGraphInstantiateWithFlags(byref(self._run), graph, c_uint64(0))
        gpu._lib.cuGraphDestroy(graph)
        check(code, "making a graph")
        gpu._handles.took()

    def replay(self) -> None:
        self._gpu._enter()
        check(self._gpu._lib.cuGraphLaunch(self._run, self._gpu._stream), "running kernels")

    def __del__(self) -> None:
        if getattr(self, "_run", None):
            self._gpu._lib.cuGraphExecDestroy(self._run)
            self._gpu._handles.gave()


def memory_rate(gpu: Gpu) -> float:
    """Specified memory bandwidth of the GPU in bytes a second (0: unknown to the driver)."""
    khz, bits = attribute(_CLOCK_KHZ, gpu.number), attribute(_BUS_BITS, gpu.number)
    return 2e3 * khz * bits / 8
