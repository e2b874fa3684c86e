"""OpenCL by pyopencl: on a GPU's driver, or on a CPU by PoCL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyopencl
from numpy.typing import NDArray

from edgedec.runtimes.tvm.plans import LaunchPlan
from edgedec.testing.sources.machine import MachineMissing


def open(source: str, plan: LaunchPlan) -> OpenclMachine:  # noqa: A001
    """The first device of the first driver."""
    try:
        devices = [device for platform in pyopencl.get_platforms() for device in platform.get_devices()]
    except pyopencl.Error as error:
        raise MachineMissing(f"--language opencl: no driver: {error}") from None
    if not devices:
        raise MachineMissing("--language opencl: no device")
    return OpenclMachine(devices[0], source, plan)


class OpenclMachine:
    """A device by pyopencl."""

    def __init__(self, device: Any, source: str, plan: LaunchPlan) -> None:
        self.name = str(device.name)
        self._context = pyopencl.Context([device])
        self._queue = pyopencl.CommandQueue(self._context)
        program = pyopencl.Program(self._context, source).build()
        self._kernels = {name: pyopencl.Kernel(program, name) for name in plan.kernels}
        self._threads = {name: facts.threads for name, facts in plan.kernels.items()}
        self._arrays: dict[str, Any] = {}

    def allocate(self, name: str, size: int) -> None:
        self._arrays[name] = pyopencl.Buffer(
            self._context, pyopencl.mem_flags.COPY_HOST_PTR, hostbuf=np.zeros(size, np.uint8)
        )

    def write(self, name: str, array: NDArray[Any]) -> None:
        pyopencl.enqueue_copy(self._queue, self._arrays[name], np.ascontiguousarray(array))

    def read(self, name: str, array: NDArray[Any]) -> None:
        pyopencl.enqueue_copy(self._queue, array, self._arrays[name])

    def launch(self, kernel: str, groups: tuple[int, int], arrays: tuple[str, ...]) -> None:
        threads = self._threads[kernel]
        size = (groups[0] * threads, groups[1])
        self._kernels[kernel](self._queue, size, (threads, 1), *(self._arrays[name] for name in arrays))


def drivers_folder() -> str | None:
    """Where a wheel of PoCL beside pyopencl registers itself (OCL_ICD_VENDORS); None: there is none."""
    folder = Path(pyopencl.__file__).parent / ".libs"
    return str(folder) if list(folder.glob("*.icd")) else None
