"""What an engine needs of a device: memory, copies, launches, and launches recorded once and run again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class DeviceError(OSError):
    """What the device refused, in one line."""


class Recorded(Protocol):
    """Launches that can be run again with one call."""

    def replay(self) -> None: ...


class Device(Protocol):
    """One GPU, or the emulation of one. Launches and copies happen in their order."""

    name: str

    def allocate(self, size: int) -> int:
        """The address of `size` new bytes, 256-byte aligned, not cleared."""
        ...

    def free(self, address: int) -> None: ...

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

    def record(self, launches: Callable[[], None]) -> Recorded:
        """Record the launches that `launches` makes, without running them."""
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
    """Memory of a few sizes that is taken and given back all the time: what is given back is kept for the next."""

    def __init__(self, device: Device) -> None:
        self._device, self._free = device, dict[int, list[Buffer]]()

    def take(self, size: int) -> Recycled:
        """Memory of `size` bytes, not cleared."""
        free = self._free.setdefault(size, [])
        return Recycled(self, free.pop() if free else Buffer(self._device, size), size)

    def give_back(self, buffer: Buffer, size: int) -> None:
        self._free[size].append(buffer)


class Recycled:
    """Memory that goes back to its recycler with the object. `at`: its address."""

    def __init__(self, recycler: Recycler, buffer: Buffer, size: int) -> None:
        self._recycler, self._buffer, self.at, self.size = recycler, buffer, buffer.at, size

    def __del__(self) -> None:
        self._recycler.give_back(self._buffer, self.size)
