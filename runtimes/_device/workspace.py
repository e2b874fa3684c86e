"""The working memory of steps."""

from __future__ import annotations

from edgedec.kernels.device.interface import Buffer, Device


class Workspace:
    """Named memory that grows. `generation` changes when any of it moves."""

    def __init__(self, device: Device) -> None:
        self._device, self._buffers, self.generation = device, dict[str, Buffer](), 0

    def need(self, name: str, size: int) -> int:
        """The address of at least `size` bytes."""
        held = self._buffers.get(name)
        if held is None or held.size < size:
            self._buffers[name] = held = Buffer(self._device, size)
            self.generation += 1
        return held.at
