"""Pooled memory of a few sizes for states of recurrent blocks and the inputs of their pending rows. Without room on the
device, a piece is swapped to the host's memory while it is not in use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.kernels.device.interface import Device
from edgedec.runtimes._device.budget import MemoryBudget
from edgedec.runtimes._device.frames import PageFrames


class DevicePiece:
    """A piece of memory, freed with the object."""

    def __init__(self, frames: PageFrames, number: int, size: int) -> None:
        self.frames, self.number, self.size = frames, number, size

    @property
    def at(self) -> int:
        """Its device address, after a copy to the device if needed; it stays valid while the piece is pinned."""
        return self.frames.address(self.number)

    def read(self, at: int, out: NDArray[Any]) -> None:
        """Fill `out` with its bytes from `at` on, from device or host memory."""
        self.frames.read(self.number, at, out.reshape(-1).view(np.uint8))

    def __del__(self) -> None:
        frames, number = self.frames, self.number
        frames.turn.after(lambda: frames.remove(number))


class PieceMemory:
    """The pieces of a device, on it within its budget."""

    def __init__(self, device: Device, budget: MemoryBudget) -> None:
        self._device, self._budget, self._numbers = device, budget, count()
        self.frames, self._zeros = dict[int, PageFrames](), dict[int, DevicePiece]()

    @property
    def swapped(self) -> int:
        """How many pieces have left the device so far."""
        return sum(frames.swapped for frames in self.frames.values())

    def take(self, size: int) -> DevicePiece:
        """A piece of `size` bytes, not cleared."""
        if size not in self.frames:
            self.frames[size] = PageFrames(self._device, size, budget=self._budget, slab=size)
        frames, number = self.frames[size], next(self._numbers)
        frames.add(number)
        return DevicePiece(frames, number, size)

    def holding(self, *arrays: NDArray[np.float32]) -> DevicePiece:
        """A piece with these floats, one array after another."""
        made = self.take(sum(array.nbytes for array in arrays))
        self._device.write(made.at, np.concatenate(arrays))
        return made

    def zeros(self, size: int) -> DevicePiece:
        """A zeroed piece, shared by all callers and never written."""
        if size not in self._zeros:
            self._zeros[size] = self.holding(np.zeros(size // 4, np.float32))
        return self._zeros[size]

    @contextmanager
    def pinned(self, pieces: Iterable[DevicePiece]) -> Iterator[None]:
        """Keep these pieces on the device inside the context. MemoryError if they do not fit."""
        numbers = defaultdict[PageFrames, list[int]](list)
        for piece in pieces:
            numbers[piece.frames].append(piece.number)
        with ExitStack() as stack:
            for frames, some in numbers.items():
                stack.enter_context(frames.pinned(some))
            yield
