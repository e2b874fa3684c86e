# ruff: noqa: N802
"""The part of libcuda that `driver.py` calls, on the emulation, with the driver's rules: a context belongs to a thread,
what is captured does not run, and nothing else may touch a stream meanwhile; more than 48 KiB of shared memory have to
be allowed first; memory is what was allocated and not freed."""

from __future__ import annotations

import ctypes
import struct
import threading
from ctypes import c_void_p
from itertools import count
from typing import Any

from edgedec.kernels.cuda import emulated

INVALID, OUT_OF_MEMORY, NO_CONTEXT, NOT_FOUND, CAPTURING, INVALIDATED = 1, 2, 201, 500, 900, 901
ATTRIBUTES = {75: 9, 76: 0, 97: 232448, 16: 132, 36: 2619000, 37: 5120}
NON_BLOCKING, RELAXED, SHARED_BYTES, REGISTERS = 1, 2, 8, 4


class FakeCuda:
    """Functions return CUresult. `called`: their names, in order; `memory`: bytes that allocations may take; `started`:
    what starting the driver returns; `version`: of CUDA, as the driver has it."""

    def __init__(self, memory: int = 1 << 40, started: int = 0) -> None:
        self._device, self._lib, self._threads = emulated.Emulated(), emulated._library(), threading.local()
        self.called, self.memory, self.held = list[str](), memory, dict[int, int]()
        self._handles, self._of = count(0x1000, 16), dict[int, Any]()
        self._sizes, self._allowed, self._loaded = dict[str, int](), dict[str, int](), set[str]()
        self.capture: list[Any] | None = None
        self.started, self.version = started, 13000
        self.broken = False
        self.retained, self._context, self.left_behind = 0, 0, list[str]()

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("cu"):
            object.__getattribute__(self, "called").append(name)
        return object.__getattribute__(self, name)

    def _new(self, place: Any, thing: Any) -> int:
        handle = next(self._handles)
        self._of[handle] = thing
        place._obj.value = handle
        return 0

    def _barred(self) -> int:
        """What a call that needs the context, and no capture under way, is refused with."""
        if not getattr(self._threads, "context", None):
            return NO_CONTEXT
        if self.capture is not None:
            self.broken = True
            return CAPTURING
        return 0

    # ---- the driver, the device, the context ----

    def cuInit(self, flags: int) -> int:
        return self.started

    def cuDriverGetVersion(self, version: Any) -> int:
        version._obj.value = self.version
        return 0

    def cuGetErrorString(self, code: int, text: Any) -> int:
        text._obj.value = f"fake error {code}".encode()
        return 0

    def cuDeviceGetCount(self, n: Any) -> int:
        n._obj.value = 1
        return 0

    def cuDeviceGetAttribute(self, value: Any, which: int, device: int) -> int:
        value._obj.value = ATTRIBUTES[which]
        return 0

    def cuDeviceGetName(self, name: Any, size: int, device: int) -> int:
        name.value = b"NVIDIA H100 of a test"
        return 0 if size >= 64 else INVALID

    def cuDevicePrimaryCtxRetain(self, context: Any, device: int) -> int:
        """A device has one."""
        if not self.retained:
            self._new(context, "context")
            self._context = context._obj.value
        self.retained += 1
        context._obj.value = self._context
        return 0

    def cuDevicePrimaryCtxRelease_v2(self, device: Any) -> int:
        """The last one ends all that lives there: tests want it gone before."""
        self.retained -= 1
        if not self.retained:
            self.left_behind += self.living()
            del self._of[self._context]
        return 0

    def living(self) -> list[str]:
        """What was made and not given back."""
        things = [thing for thing in self._of.values() if thing in ("module", "stream") or not isinstance(thing, str)]
        return [thing if isinstance(thing, str) else type(thing).__name__ for thing in things] + ["memory"] * len(
            self.held
        )

    def cuCtxSetCurrent(self, context: c_void_p) -> int:
        self._threads.context = context.value
        return 0 if self._of.get(context.value or 0) == "context" else INVALID

    def cuModuleLoadData(self, module: Any, image: bytes) -> int:
        return self._barred() or (INVALID if image[-1] else self._new(module, "module"))

    def cuModuleUnload(self, module: c_void_p) -> int:
        return self._barred() or self._gone(module, "module")

    def _gone(self, place: c_void_p, kind: str) -> int:
        return 0 if self._of.pop(place.value or 0) == kind else INVALID

    def cuModuleGetFunction(self, function: Any, module: c_void_p, name: bytes) -> int:
        return self._new(function, name.decode()) if self._lib.ed_cuda_has(name) else NOT_FOUND

    def cuFuncGetAttribute(self, value: Any, which: int, function: c_void_p) -> int:
        self._loaded.add(self._of[function.value or 0])
        return self._barred() or int(which != REGISTERS)

    def cuFuncSetAttribute(self, function: c_void_p, which: int, value: ctypes.c_int) -> int:
        if which != SHARED_BYTES or value.value > ATTRIBUTES[97]:
            return INVALID
        self._allowed[self._of[function.value or 0]] = value.value
        return 0

    # ---- memory ----

    def cuMemAllocHost_v2(self, place: Any, size: ctypes.c_size_t) -> int:
        made = (ctypes.c_ubyte * size.value)()
        place._obj.value = ctypes.addressof(made)
        self._of[place._obj.value] = made
        return self._barred()

    def cuMemFreeHost(self, place: c_void_p) -> int:
        del self._of[place.value or 0]
        return self._barred()

    def cuMemAlloc_v2(self, place: Any, size: ctypes.c_size_t) -> int:
        if not getattr(self._threads, "context", None):
            return NO_CONTEXT
        if sum(self.held.values()) + size.value > self.memory:
            return OUT_OF_MEMORY
        place._obj.value = self._device.allocate(size.value)
        self.held[place._obj.value] = size.value
        return 0

    def cuMemGetInfo_v2(self, free: Any, whole: Any) -> int:
        free._obj.value, whole._obj.value = self.memory - sum(self.held.values()), self.memory
        return self._barred()

    def cuMemFree_v2(self, at: ctypes.c_uint64) -> int:
        barred = self._barred()
        if not barred:
            del self.held[at.value]
            self._device.free(at.value)
        return barred

    def _inside(self, at: int, size: int) -> bool:
        return any(start <= at and at + size <= start + held for start, held in self.held.items())

    def _copied(self, to: int, source: int, size: int, *places: int) -> int:
        barred = self._barred() or int(not all(self._inside(at, size) for at in places))
        if not barred:
            ctypes.memmove(to, source, size)
        return barred

    def cuMemcpyHtoDAsync_v2(self, to: Any, source: c_void_p, size: Any, stream: c_void_p) -> int:
        assert self._of[stream.value or 0] == "stream"
        return self._copied(to.value, source.value or 0, size.value, to.value)

    def cuMemcpyDtoHAsync_v2(self, to: c_void_p, source: Any, size: Any, stream: c_void_p) -> int:
        assert self._of[stream.value or 0] == "stream"
        return self._copied(to.value or 0, source.value, size.value, source.value)

    def cuMemcpyDtoDAsync_v2(self, to: Any, source: Any, size: Any, stream: c_void_p) -> int:
        assert self._of[stream.value or 0] == "stream"
        return self._copied(to.value, source.value, size.value, to.value, source.value)

    # ---- the stream ----

    def cuStreamCreate(self, stream: Any, flags: int) -> int:
        return self._new(stream, "stream") if flags == NON_BLOCKING else INVALID

    def cuStreamDestroy_v2(self, stream: c_void_p) -> int:
        return self._barred() or self._gone(stream, "stream")

    def cuStreamSynchronize(self, stream: c_void_p) -> int:
        return self._barred()

    def cuLaunchKernel(self, function: c_void_p, *rest: Any) -> int:
        *sizes, _, given, extra = rest
        x, y, z, threads, ty, tz, shared = (size.value for size in sizes)
        name = self._of[function.value or 0]
        if (ty, tz, extra) != (1, 1, None) or shared > max(48 << 10, self._allowed.get(name, 0)):
            return INVALID
        if self.capture is not None and name not in self._loaded:
            self.broken = True  # the driver may wait for the GPU to load it
        data = ctypes.string_at(given[0], self._size_of(name))
        launch = name, (x, y, z), threads, shared, data
        if self.capture is not None:
            self.capture.append(launch)
            return 0
        return self._run(launch)

    def _run(self, launch: Any) -> int:
        self._device._run(*launch)
        return 0

    def _size_of(self, name: str) -> int:
        """Bytes of a kernel's arguments: no other size is taken."""
        if name not in self._sizes:
            sizes, nothing = (ctypes.c_uint * 3)(0, 0, 0), b"\0" * 1024
            launch = self._lib.ed_cuda_launch
            self._sizes[name] = next(
                n for n in range(8, 1024, 8) if not launch(name.encode(), sizes, 32, 0, nothing, n)
            )
        return self._sizes[name]

    def cuStreamBeginCapture_v2(self, stream: c_void_p, mode: int) -> int:
        barred = self._barred() or int(mode != RELAXED)
        self.capture, self.broken = [], False
        return barred

    def cuStreamEndCapture(self, stream: c_void_p, graph: Any) -> int:
        made, self.capture = self.capture, None
        return INVALIDATED if self.broken else self._new(graph, made)

    def cuGraphInstantiateWithFlags(self, run: Any, graph: c_void_p, flags: ctypes.c_uint64) -> int:
        return self._barred() or self._new(run, self._of[graph.value or 0])

    def cuGraphDestroy(self, graph: c_void_p) -> int:
        del self._of[graph.value or 0]
        return 0

    def cuGraphExecDestroy(self, run: c_void_p) -> int:
        del self._of[run.value or 0]
        return 0

    def cuGraphLaunch(self, run: c_void_p, stream: c_void_p) -> int:
        for launch in self._of[run.value or 0]:
            self._run(launch)
        return self._barred()

    # ---- events ----

    def cuEventCreate(self, event: Any, flags: int) -> int:
        return self._new(event, "event")

    def cuEventRecord(self, event: c_void_p, stream: c_void_p) -> int:
        return self._barred()

    def cuEventElapsedTime(self, ms: Any, first: c_void_p, second: c_void_p) -> int:
        ms._obj.value = struct.unpack("f", struct.pack("f", 0.5))[0]
        return 0

    def cuEventDestroy_v2(self, event: c_void_p) -> int:
        del self._of[event.value or 0]
        return 0
