"""A device wrapper that digests the kernels' output after every launch."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.kernels.device.interface import Device, NotedLaunches

# Kernels that write through addresses in the step's memory, to pages and states: all memory is digested. For other
# kernels the addresses are among the arguments.
_STATES = ("ssm_inputs", "ssm_scan", "ssm_advance", "conv_rows", "delta_inputs", "delta_scan", "delta_advance")
_FAR = ("rope_store", "move_slots", "page_bounds", *_STATES)
# The bytes digested of each allocation; the cases use no more.
_LOOKED_AT = 1 << 18


class Watched(NotedLaunches):
    """A `Device` over another one. `seen`: the kernel of each launch and a digest of the memory that it may have
    written; `running`: the kernel launched last."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self._device, self.name = device, device.name
        self.has_matrix, self.fused_bytes = device.has_matrix, device.fused_bytes
        self.shared_bytes, self.most_threads = device.shared_bytes, device.most_threads
        self.sizes = device.sizes
        self.read, self.copy, self.synchronize = device.read, device.copy, device.synchronize
        self._sizes, self._given = dict[int, int](), set[int]()
        self.seen, self.running = list[tuple[str, str]](), "?"

    def allocate(self, size: int) -> int:
        """Allocate zeroed memory, so that bytes that no kernel writes are equal on every device."""
        at = self._device.allocate(size)
        self._device.write(at, np.zeros(size, np.uint8))
        self._sizes[at] = size
        return at

    def free(self, address: int) -> None:
        self._sizes.pop(address, None)
        self._given.discard(address)
        self._device.free(address)

    def write(self, address: int, array: NDArray[Any]) -> None:
        """Memory written by the host holds addresses or weights; it is excluded from the digests."""
        if address in self._sizes:
            self._given.add(address)
        self._device.write(address, array)

    def _run(self, kernel: str, grid: tuple[int, int, int], threads: int, shared: int, arguments: bytes) -> None:
        self.running = kernel
        self._device.launch(kernel, grid, threads, shared, arguments)
        self.seen.append((kernel, self._digest(kernel, arguments)))

    def _digest(self, kernel: str, arguments: bytes) -> str:
        words = np.frombuffer(arguments[: len(arguments) // 8 * 8], np.uint64).tolist()
        made = hashlib.blake2b(digest_size=2)
        for at, size in self._sizes.items():
            if at in self._given or not (kernel in _FAR or any(at <= word < at + size for word in words)):
                continue
            bytes_ = np.empty(min(size, _LOOKED_AT), np.uint8)
            self._device.read(at, bytes_)
            made.update(bytes_.tobytes())
        return made.hexdigest()
