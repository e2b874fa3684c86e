"""A GPU through OpenCL: its memory (`memory.py`), one queue, the kernels compiled by the driver once and kept."""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Collection, Sequence
from ctypes import byref, c_char_p, c_int32, c_size_t, c_ubyte, c_void_p
from functools import cached_property
from itertools import chain, combinations
from typing import Any

from numpy.typing import NDArray

from edgedec.kernels.cuda.sources import cache_folder
from edgedec.kernels.device.interface import MOST_THREADS, NARROW, DeviceError, NotedLaunches
from edgedec.kernels.opencl import sources
from edgedec.kernels.opencl.images import READERS, WeightImages
from edgedec.kernels.opencl.library import DeviceFacts, build_log, check, devices, library
from edgedec.kernels.opencl.memory import ArenaMemory, DeviceMemory, SharedMemory
from edgedec.kernels.opencl.variants import EXTRA, SHARED, asked, language, offered

DEVICE = "EDGEDEC_OPENCL"  # which device: its number in the list of all, or a part of its name
_KERNEL_THREADS = 0x11B0
_BINARY_SIZES, _BINARIES = 0x1165, 0x1166
_DIGEST = 32
# Local memory reserved for kernels' own arrays and for drivers, which the host does not allocate.
_OWN_LOCAL = 256
# Whatever a kernel does in strides, it needs a thread a key of a tile.
_LEAST_THREADS = 32
# PoCL compiles a kernel at its first launch and caches it itself; a request for the program binary would compile all
# kernels.
_OWN_CACHE = ("Portable Computing Language",)


def why_not(word: str = "") -> str | None:
    """None if there is a device that this engine can use, else the reason in one line."""
    try:
        chosen(word)
    except DeviceError as error:
        return str(error)
    return None


def chosen(word: str = "") -> DeviceFacts:
    """The device that `word` or else EDGEDEC_OPENCL names, else the first GPU; DeviceError if there is none."""
    found, wanted = devices(), word or os.environ.get(DEVICE, "")
    if not found:
        raise DeviceError("no OpenCL device: its library knows no driver")
    if not wanted:
        fitting = [facts for facts in found if facts.gpu]
    elif wanted.isdigit():
        fitting = found[int(wanted) : int(wanted) + 1]
    else:
        fitting = [facts for facts in found if wanted.lower() in f"{facts.platform} {facts.name}".lower()]
    if not fitting:
        names = ", ".join(f"{i}: {facts.name}" for i, facts in enumerate(found))
        raise DeviceError(
            f"no OpenCL device {wanted!r}" if wanted else f"no OpenCL GPU; {DEVICE} may name one of {names}"
        )
    lacking = fitting[0].lacks()
    if lacking:
        raise DeviceError(lacking)
    return fitting[0]


class OpenclDevice(NotedLaunches):
    """`Device` through OpenCL. Everything goes through one queue, in its order. `launches` counts what was run."""

    has_matrix, sizes = False, NARROW
    fused_bytes = 0

    def __init__(self, facts: DeviceFacts, text: str | None = None, without: Collection[str] = ()) -> None:
        """text: another program than the engine's; without: `variants` that are not to be used."""
        super().__init__()
        self._lib, self.facts, self.name, self.launches = library(), facts, facts.name, 0
        self.shared_bytes = max(facts.local - _OWN_LOCAL, 0)
        handle, code = c_void_p(facts.handle), c_int32()
        self._context = self._lib.clCreateContext(None, 1, byref(handle), None, None, byref(code))
        check(code.value, f"opening {facts.name}")
        self._queue = self._lib.clCreateCommandQueue(self._context, handle, 0, byref(code))
        check(code.value, "making a queue")
        self.driver, self._text = f"{facts.platform} {facts.driver}", sources.source() if text is None else text
        self.kernels = hashlib.sha256("\0".join([self._text, *asked()]).encode()).hexdigest()
        self.variants = tuple(part for part in offered(facts) if part not in without)
        self._program = self._compiled()
        self._kernels, self._most = dict[str, int](), dict[str, int]()
        self._memory = self._memory_of(facts)
        self._images = WeightImages(self._context, facts, self._memory)

    def _compiled(self) -> int:
        """The program with as many variants as the driver's compiler accepts."""
        whole = self._text if SHARED in self.variants else sources.with_arenas(self._text)
        extra = [part for part in self.variants if part in EXTRA]
        refused = list[DeviceError]()
        for gone in chain.from_iterable(combinations(extra, n) for n in range(len(extra) + 1)):
            left = tuple(part for part in self.variants if part not in gone)
            try:
                made = _Compiler(self._context, self.facts, whole, left).program()
            except DeviceError as error:
                refused.append(error)
                continue
            self.variants = left
            return made
        raise refused[-1]

    def _memory_of(self, facts: DeviceFacts) -> DeviceMemory:
        if SHARED in self.variants:
            return SharedMemory(self._context, self._queue, facts)
        # No reference cycle: memory must be freed as soon as it is dropped.
        made, lib, queue = self._kernel("find_arenas"), self._lib, self._queue
        return ArenaMemory(self._context, queue, facts, lambda handles: _find_arenas(lib, queue, made, handles))

    @cached_property
    def most_threads(self) -> int:
        """Threads of a work-group that the driver allows each product, in whole thirty-twos."""
        names = [*READERS, "product_f32"] + [of.kernel for of in READERS.values() if sources.IMAGES in self.variants]
        most = MOST_THREADS
        for name in names:
            made = self._made(name)
            most = min(most, self._allowed(made))
            self._lib.clReleaseKernel(made)
        return max(most // 32, 1) * 32

    def summary(self) -> list[str]:
        """Device features used by kernels, in lines for reports."""
        uses = f"variants: {', '.join(self.variants).lower() or 'none'}"
        return [uses, self._images.summary()] if sources.IMAGES in self.variants else [uses]

    def without(self, parts: Collection[str]) -> OpenclDevice:
        """The device with these variants disabled."""
        return OpenclDevice(self.facts, self._text, parts)

    def allocate(self, size: int) -> int:
        if size > self.facts.most:
            raise MemoryError(
                f"{self.name}: {size >> 20} MiB in one piece, of which it has at most {self.facts.most >> 20}"
            )
        return self._memory.allocate(size)

    def free(self, address: int) -> None:
        self._images.forget(address)
        self._memory.free(address)

    def write(self, address: int, array: NDArray[Any]) -> None:
        if array.nbytes:
            self._memory.write(address, array.ctypes.data, array.nbytes)

    def read(self, address: int, array: NDArray[Any]) -> None:
        if array.nbytes:
            self._memory.read(address, array.ctypes.data, array.nbytes)

    def copy(self, to: int, source: int, size: int) -> None:
        if size:
            self._memory.copy(to, source, size)

    def _run(self, kernel: str, grid: tuple[int, int, int], threads: int, shared: int, arguments: bytes) -> None:
        name, image = self._reader(kernel, arguments)
        made, own = self._kernel(name), 1 + len(image)
        if shared > self.facts.local:
            raise DeviceError(f"{self.name}: {name} needs {shared} bytes of local memory, of {self.facts.local}")
        # Products require this number of threads; other kernels work with any number, in strides.
        lib, need = self._lib, threads if kernel.startswith("product_") else min(threads, _LEAST_THREADS)
        if self._most[name] < need:
            most = self._most[name]
            raise DeviceError(f"{self.name}: {name} needs work-groups of {need} threads; the driver allows it {most}")
        threads = min(threads, self._most[name])
        check(lib.clSetKernelArg(made, 0, len(arguments), arguments), f"arguments of {name}")
        for i, handle in enumerate(image):
            check(lib.clSetKernelArg(made, 1 + i, 8, byref(c_void_p(handle))), f"the image of {name}")
        check(lib.clSetKernelArg(made, own, max(shared, 16), None), f"local memory of {name}")
        self._memory.tell(name, made, own + 1)
        sizes, local = (c_size_t * 2)(grid[0] * threads, grid[1]), (c_size_t * 2)(threads, 1)
        code = lib.clEnqueueNDRangeKernel(self._queue, made, 2, None, sizes, local, 0, None, None)
        check(code, f"launching {name}")
        self.launches += 1

    def _reader(self, kernel: str, arguments: bytes) -> tuple[str, tuple[int, ...]]:
        """The kernel to launch: the named one, or its variant for images with the image argument."""
        return self._images.reader(kernel, arguments) if sources.IMAGES in self.variants else (kernel, ())

    def _kernel(self, name: str) -> int:
        if name not in self._kernels:
            made = self._made(name)
            self._kernels[name], self._most[name] = made, self._allowed(made)
        return self._kernels[name]

    def _made(self, name: str) -> int:
        code = c_int32()
        made: int = self._lib.clCreateKernel(self._program, name.encode(), byref(code))
        check(code.value, f"kernel {name}")
        return made

    def _allowed(self, kernel: int) -> int:
        """Threads of a work-group that the driver allows a kernel."""
        most = c_size_t()
        self._lib.clGetKernelWorkGroupInfo(kernel, self.facts.handle, _KERNEL_THREADS, 8, byref(most), None)
        return min(most.value or MOST_THREADS, MOST_THREADS)

    def synchronize(self) -> None:
        check(self._lib.clFinish(self._queue), "running kernels")


def _find_arenas(lib: Any, queue: int, kernel: int, handles: Sequence[int]) -> None:
    """Run the kernel that writes the addresses of the buffers."""
    none, one = c_int32(), (c_size_t * 2)(1, 1)
    check(lib.clSetKernelArg(kernel, 0, 4, byref(none)), "arguments of find_arenas")
    check(lib.clSetKernelArg(kernel, 1, 16, None), "local memory of find_arenas")
    for i, handle in enumerate(handles):
        value = byref(c_void_p(handle)) if handle else None
        check(lib.clSetKernelArg(kernel, 2 + i, 8, value), "arguments of find_arenas")
    check(lib.clEnqueueNDRangeKernel(queue, kernel, 2, None, one, one, 0, None, None), "launching find_arenas")


class _Compiler:
    """The program for a device: the driver's compiler takes seconds, so its result is kept in the cache folder."""

    def __init__(self, context: int, facts: DeviceFacts, text: str, variants: Collection[str]) -> None:
        self._lib, self._context, self._facts, self._text = library(), context, facts, text
        words = [f"-cl-std={language(facts, variants)}", *(f"-D{part}" for part in variants)]
        if facts.exact_division:
            words.append("-cl-fp32-correctly-rounded-divide-sqrt")
        self._options = " ".join(words)
        said = "\0".join((text, self._options, facts.platform, facts.name, facts.version, facts.driver))
        self._file = cache_folder() / "opencl" / f"{hashlib.sha256(said.encode()).hexdigest()}.bin"

    def program(self) -> int:
        return self._kept() or self._compiled()

    def _kept(self) -> int:
        """The cached program; 0 if it is missing, damaged (drivers do not check), or refused by the driver."""
        try:
            whole = self._file.read_bytes()
        except OSError:
            return 0
        digest, data = whole[:_DIGEST], whole[_DIGEST:]
        if hashlib.sha256(data).digest() != digest:
            return 0
        handle, code, size = c_void_p(self._facts.handle), c_int32(), c_size_t(len(data))
        binary = (c_char_p * 1)(data)
        made: int | None = self._lib.clCreateProgramWithBinary(
            self._context, 1, byref(handle), byref(size), binary, None, byref(code)
        )
        return made if made and not code.value and not self._build(made) else 0

    def _compiled(self) -> int:
        text, code = (c_char_p * 1)(self._text.encode()), c_int32()
        made: int = self._lib.clCreateProgramWithSource(self._context, 1, text, None, byref(code))
        check(code.value, "reading the program")
        if self._build(made):
            log = build_log(made, self._facts.handle)
            raise DeviceError(f"{self._facts.name}: its compiler refuses the kernels: {log if log else '?'}")
        if self._facts.platform not in _OWN_CACHE:
            self._keep(made)
        return made

    def _build(self, program: int) -> int:
        handle = c_void_p(self._facts.handle)
        code: int = self._lib.clBuildProgram(program, 1, byref(handle), self._options.encode(), None, None)
        return code

    def _keep(self, program: int) -> None:
        """Write the program to the cache; without a writable cache the next start compiles it again."""
        size = c_size_t()
        if self._lib.clGetProgramInfo(program, _BINARY_SIZES, 8, byref(size), None) or not size.value:
            return
        data = (c_ubyte * size.value)()
        places = (c_void_p * 1)(ctypes.addressof(data))
        if self._lib.clGetProgramInfo(program, _BINARIES, 8, places, None):
            return
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            staging = self._file.with_suffix(f".{os.getpid()}")
            staging.write_bytes(hashlib.sha256(data).digest() + bytes(data))
            os.replace(staging, self._file)
        except OSError:
            pass
