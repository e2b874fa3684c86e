"""Memory of an OpenCL device: shared with the host (OpenCL 2.0), or a few large buffers (OpenCL 1.2).

Kernels find everything by addresses, which lie in structs and tables. In shared memory they are the host's. A kernel
writes the device address of each buffer; addresses are computed from it. A driver may move buffers between kernels,
though none is known to do so; the addresses are therefore checked again before results are read.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_right, insort
from collections.abc import Callable
from ctypes import byref, c_int32, c_size_t, c_void_p
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from edgedec.kernels.device.interface import DeviceError
from edgedec.kernels.opencl.library import DeviceFacts, check, library

_READ_WRITE, _USE_HOST, _SVM_POINTERS, _REGION = 1, 1 << 3, 0x11B6, 0x1220
# The largest type that OpenCL has: alignment above it may be refused.
_ALIGNED = 128
# The most buffers, which are kernel arguments, and the size of the first; each further one is four times as large.
ARENAS, _FIRST, _GROWS = 4, 64 << 20, 4
# Allocations begin at multiples of this, or of the device's alignment for sub-buffers; the first bytes of the first
# buffer hold the addresses of all buffers.
_GRAIN = 256


class DeviceMemory(Protocol):
    """Memory that kernels find by addresses; everything goes through one queue, in its order."""

    def allocate(self, size: int) -> int: ...

    def free(self, address: int) -> None: ...

    def write(self, address: int, host: int, size: int) -> None:
        """From the host's memory."""
        ...

    def read(self, address: int, host: int, size: int) -> None:
        """To the host's memory."""
        ...

    def copy(self, to: int, source: int, size: int) -> None: ...

    def part(self, address: int) -> tuple[int, int]:
        """A new buffer object for the allocation at an address, and its size; zeros if that is not possible."""
        ...

    def tell(self, name: str, kernel: int, at: int) -> None:
        """Declare to the driver the memory that a kernel may access; `at`: the number of the first argument for it."""
        ...


class SharedMemory:
    """Shared virtual memory: an address of the host is one of the device."""

    def __init__(self, context: int, queue: int, facts: DeviceFacts) -> None:
        self._lib, self._context, self._queue, self._facts = library(), context, queue, facts
        self._held, self._changes, self._told = dict[int, int](), 0, dict[str, int]()

    def allocate(self, size: int) -> int:
        found: int | None = self._lib.clSVMAlloc(self._context, _READ_WRITE, size, _ALIGNED)
        if not found:
            raise MemoryError(f"{self._facts.name}: no {size} bytes of memory")
        self._held[found] = size
        self._changes += 1
        return found

    def free(self, address: int) -> None:
        check(self._lib.clFinish(self._queue), "running kernels")
        self._held.pop(address, None)
        self._changes += 1
        self._lib.clSVMFree(self._context, address)

    def write(self, address: int, host: int, size: int) -> None:
        self._copy(address, host, size, True, "copying to the device")

    def read(self, address: int, host: int, size: int) -> None:
        self._copy(host, address, size, True, "copying from the device")

    def copy(self, to: int, source: int, size: int) -> None:
        self._copy(to, source, size, False, "copying on the device")

    def _copy(self, to: int, source: int, size: int, wait: bool, what: str) -> None:
        check(self._lib.clEnqueueSVMMemcpy(self._queue, int(wait), to, source, size, 0, None, None), what)

    def part(self, address: int) -> tuple[int, int]:
        code, size = c_int32(), self._held.get(address, 0)
        if not size:
            return 0, 0
        made: int | None = self._lib.clCreateBuffer(
            self._context, _READ_WRITE | _USE_HOST, c_size_t(size), address, byref(code)
        )
        return (made or 0, size) if not code.value else (0, 0)

    def tell(self, name: str, kernel: int, at: int) -> None:
        """Declare all memory that a kernel may access through addresses."""
        if self._told.get(name) == self._changes or not self._held:
            return
        held = (c_void_p * len(self._held))(*self._held)
        check(self._lib.clSetKernelExecInfo(kernel, _SVM_POINTERS, ctypes.sizeof(held), held), f"memory of {name}")
        self._told[name] = self._changes


class Arena:
    """A buffer that is allocated in pieces, at multiples of `grain`. `base`: its address on the device."""

    def __init__(self, handle: int, size: int, reserved: int, grain: int = _GRAIN) -> None:
        self.handle, self.size, self.base, self._grain = handle, size, 0, grain
        self._free = [(reserved, size)]  # from, to; apart and in order
        self._taken = dict[int, int]()

    def take(self, size: int) -> int | None:
        """The offset of a new piece; None if there is no room."""
        size = -(-size // self._grain) * self._grain
        for i, (start, stop) in enumerate(self._free):
            if stop - start >= size:
                self._free[i : i + 1] = [(start + size, stop)] if stop - start > size else []
                self._taken[start] = start + size
                return start
        return None

    def taken(self, start: int) -> int:
        """The size of the piece that begins there; 0 if none does."""
        return self._taken.get(start, start) - start

    def give_back(self, start: int) -> None:
        """Free a piece and merge it with adjacent free ones."""
        stop = self._taken.pop(start)
        insort(self._free, (start, stop))
        at = self._free.index((start, stop))
        while at + 1 < len(self._free) and self._free[at][1] == self._free[at + 1][0]:
            self._free[at : at + 2] = [(self._free[at][0], self._free[at + 1][1])]
        if at and self._free[at - 1][1] == self._free[at][0]:
            self._free[at - 1 : at + 1] = [(self._free[at - 1][0], self._free[at][1])]


class ArenaMemory:
    """Memory in up to `ARENAS` buffers. `ask`: runs the kernel that writes the buffers' addresses into the first one,
    given their handles."""

    def __init__(self, context: int, queue: int, facts: DeviceFacts, ask: Callable[[list[int]], None]) -> None:
        self._lib, self._context, self._queue, self._facts = library(), context, queue, facts
        self._ask, self._told, self._run = ask, dict[str, int](), False
        self._grain = max(_GRAIN, facts.aligned)
        self._arenas = list[Arena]()

    def __del__(self) -> None:
        for arena in getattr(self, "_arenas", ()):
            self._lib.clReleaseMemObject(arena.handle)

    @property
    def handles(self) -> list[int]:
        """The handles of all buffers as kernel arguments: 0 for missing ones."""
        return [arena.handle for arena in self._arenas] + [0] * (ARENAS - len(self._arenas))

    def allocate(self, size: int) -> int:
        for arena in self._arenas:
            start = arena.take(size)
            if start is not None:
                return arena.base + start
        made = self._new(size)
        start = made.take(size)
        assert start is not None
        return made.base + start

    def free(self, address: int) -> None:
        arena, start = self._place(address)
        arena.give_back(start)

    def write(self, address: int, host: int, size: int) -> None:
        arena, at = self._place(address)
        code = self._lib.clEnqueueWriteBuffer(self._queue, arena.handle, 1, at, size, host, 0, None, None)
        check(code, "copying to the device")

    def read(self, address: int, host: int, size: int) -> None:
        self._look_again()
        arena, at = self._place(address)
        code = self._lib.clEnqueueReadBuffer(self._queue, arena.handle, 1, at, size, host, 0, None, None)
        check(code, "copying from the device")

    def copy(self, to: int, source: int, size: int) -> None:
        (one, at), (other, start) = self._place(source), self._place(to)
        code = self._lib.clEnqueueCopyBuffer(self._queue, one.handle, other.handle, at, start, size, 0, None, None)
        check(code, "copying on the device")

    def part(self, address: int) -> tuple[int, int]:
        (arena, start), code = self._place(address), c_int32()
        size = arena.taken(start)
        if not size:
            return 0, 0
        region = (c_size_t * 2)(start, size)
        made: int | None = self._lib.clCreateSubBuffer(arena.handle, 0, _REGION, region, byref(code))
        return (made or 0, size) if not code.value else (0, 0)

    def tell(self, name: str, kernel: int, at: int) -> None:
        """The buffers are arguments of every kernel, after its own."""
        self._run = True
        if self._told.get(name) == len(self._arenas):
            return
        for i, handle in enumerate(self.handles):
            value = c_void_p(handle) if handle else None
            check(self._lib.clSetKernelArg(kernel, at + i, 8, byref(value) if value else None), f"memory of {name}")
        self._told[name] = len(self._arenas)

    def _new(self, size: int) -> Arena:
        """A further buffer; the last one that there may be is as large as the device allows."""
        grain = self._grain
        most = self._facts.most // grain * grain
        need = max(-(-size // grain) * grain + grain, _FIRST * _GROWS ** len(self._arenas))
        wanted = most if len(self._arenas) == ARENAS - 1 else min(need, most)
        if len(self._arenas) == ARENAS or wanted < size + grain:
            held = sum(arena.size for arena in self._arenas) >> 20
            raise MemoryError(f"{self._facts.name}: no {size} bytes of memory beside {held} MiB in buffers")
        code = c_int32()
        handle: int | None = self._lib.clCreateBuffer(self._context, _READ_WRITE, c_size_t(wanted), None, byref(code))
        check(code.value, f"a buffer of {wanted >> 20} MiB")
        assert handle is not None
        made = Arena(handle, wanted, grain, grain)
        self._arenas.append(made)
        made.base = self._bases()[len(self._arenas) - 1]
        self._check_apart()
        return made

    def _bases(self) -> list[int]:
        """The current addresses of the buffers."""
        self._ask(self.handles)
        found: np.ndarray[Any, np.dtype[np.uint64]] = np.zeros(ARENAS, np.uint64)
        code = self._lib.clEnqueueReadBuffer(
            self._queue, self._arenas[0].handle, 1, 0, found.nbytes, found.ctypes.data, 0, None, None
        )
        check(code, "looking for the buffers")
        return [int(base) for base in found]

    def _look_again(self) -> None:
        """Raise DeviceError if the buffers have moved since the kernels were run."""
        if not self._run:
            return
        self._run = False
        if [arena.base for arena in self._arenas] != self._bases()[: len(self._arenas)]:
            raise DeviceError(f"{self._facts.name}: its driver moves buffers, which addresses do not outlive")

    def _check_apart(self) -> None:
        """Addresses of two buffers must not be the same."""
        ranges = sorted((arena.base, arena.base + arena.size) for arena in self._arenas)
        if any(one[1] > other[0] for one, other in pairwise(ranges)) or not ranges[0][0]:
            raise DeviceError(f"{self._facts.name}: its buffers have no addresses of their own")

    def _place(self, address: int) -> tuple[Arena, int]:
        """The buffer of an address, and the offset in it."""
        found = sorted(self._arenas, key=lambda arena: arena.base)
        arena = found[bisect_right([arena.base for arena in found], address) - 1]
        return arena, address - arena.base
