"""The device interface of engines: memory, copies, launches, and recorded launches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class DeviceError(OSError):
    """An error of a device, in one line."""


class Recorded(Protocol):
    """Launches that can be run again with one call."""

    def replay(self) -> None: ...


# Threads of a block of a product, at most.
MOST_THREADS = 256


@dataclass(frozen=True)
class BlockSizes:
    """What a block of a device's kernels takes. product, product_row: bytes of shared memory of a product's sums, and
    of each of its rows; keys, threads: of attention, at once, at most."""

    product: int
    product_row: int
    keys: int
    threads: int


NARROW = BlockSizes(0, 4096, 32, 128)
WIDE = BlockSizes(4096, 4420, 256, 256)


# A kernel, its grid, threads and bytes of shared memory of a block, its arguments.
Launch = tuple[str, tuple[int, int, int], int, int, bytes]


class NotedLaunches:
    """Base of devices without recorded graphs: launches are noted and repeated one after another. `_run` makes one."""

    name = "device"

    def __init__(self) -> None:
        self._noted: list[Launch] | None = None

    def prepare(self, kernel: str, shared: int) -> None:
        """Nothing to do: kernels are compiled already."""

    def free_bytes(self) -> int:
        """0: unknown without a driver."""
        return 0

    def outside(self, what: str) -> None:
        """Raise DeviceError during a recording, as a GPU does."""
        if self._noted is not None:
            raise DeviceError(f"{self.name}: {what} while launches are recorded")

    def _run(self, kernel: str, grid: tuple[int, int, int], threads: int, shared: int, arguments: bytes) -> None:
        raise NotImplementedError

    def launch(self, kernel: str, grid: tuple[int, int, int], threads: int, shared: int, arguments: bytes) -> None:
        if self._noted is None:
            return self._run(kernel, grid, threads, shared, arguments)
        self._noted.append((kernel, grid, threads, shared, arguments))

    def record(self, launches: Callable[[], None]) -> Recorded:
        noted = list[Launch]()
        self._noted = noted
        try:
            launches()
            return _Noted(self, noted)
        finally:
            self._noted = None


class _Noted:
    def __init__(self, device: NotedLaunches, launches: list[Launch]) -> None:
        self._device, self._launches = device, launches

    def replay(self) -> None:
        for launch in self._launches:
            self._device._run(*launch)


class Device(Protocol):
    """One GPU, or the emulation of one. Launches and copies happen in their order.

    has_matrix: has it kernels for products of many rows? fused_bytes: shared memory of a product with fused preparation
    of rows; 0: not supported. shared_bytes: shared memory that a block may take. sizes: what its kernels take of it."""

    name: str
    sizes: BlockSizes
    has_matrix: bool
    fused_bytes: int
    shared_bytes: int

    @property
    def most_threads(self) -> int:
        """Threads that a block of a product may have."""
        ...

    def allocate(self, size: int) -> int:
        """The address of `size` new bytes, 256-byte aligned, uninitialized."""
        ...

    def free(self, address: int) -> None: ...

    def free_bytes(self) -> int:
        """Bytes of free memory; 0 if unknown."""
        ...

    def write(self, address: int, array: NDArray[Any]) -> None:
        """Copy a contiguous array to the device."""
        ...

    def read(self, address: int, array: NDArray[Any]) -> None:
        """Fill a contiguous array from the device, after all launches so far."""
        ...

    def copy(self, to: int, source: int, size: int) -> None:
        """Copy within the device."""
        ...

    def launch(self, kernel: str, grid: tuple[int, int, int], threads: int, shared: int, arguments: bytes) -> None:
        """Run a kernel. `arguments`: its struct; `shared`: bytes of shared memory of a block."""
        ...

    def prepare(self, kernel: str, shared: int) -> None:
        """Load a kernel for launches with this much shared memory per block, before `record`."""
        ...

    def record(self, launches: Callable[[], None]) -> Recorded:
        """Record the launches that `launches` makes, without running them. It must not allocate, copy or wait."""
        ...

    def synchronize(self) -> None:
        """Wait for all launches; DeviceError if one failed."""
        ...


class Buffer:
    """Memory of a device, freed with the object. `at`: its address."""

    def __init__(self, device: Device, size: int) -> None:
        self._device, self.size = device, max(size, 256)
        self.at = device.allocate(self.size)

    @classmethod
    def of(cls, device: Device, array: NDArray[Any]) -> Buffer:
        """A copy of an array on the device."""
        made = cls(device, array.nbytes)
        device.write(made.at, np.ascontiguousarray(array))
        return made

    def __del__(self) -> None:
        if getattr(self, "at", 0):
            self._device.free(self.at)
            self.at = 0


class Recycler:
    """A free list for memory of a few sizes that is allocated and freed often."""

    def __init__(self, device: Device) -> None:
        # All memory is owned here, because a garbage collection may end objects in any order.
        self._device, self._held, self._free = device, list[Buffer](), dict[int, list[int]]()

    def take(self, size: int) -> Recycled:
        """Memory of `size` bytes, uninitialized."""
        free = self._free.setdefault(size, [])
        if not free:
            self._held.append(Buffer(self._device, size))
            free.append(self._held[-1].at)
        return Recycled(self, free.pop(), size)

    def give_back(self, address: int, size: int) -> None:
        self._free[size].append(address)


class Recycled:
    """Memory that returns to its recycler with the object. `at`: its address."""

    def __init__(self, recycler: Recycler, address: int, size: int) -> None:
        self._recycler, self.at, self.size = recycler, address, size

    def __del__(self) -> None:
        self._recycler.give_back(self.at, self.size)
