"""WGSL by wgpu: on a GPU by Vulkan, Metal or DirectX 12, or on a CPU by SwiftShader or lavapipe."""

from __future__ import annotations

from typing import Any

import numpy as np
import wgpu
from numpy.typing import NDArray

from edgedec.runtimes.tvm.plans import MARK, LaunchPlan
from edgedec.testing.sources.machine import MachineMissing

_LIMITS = ("max-buffer-size", "max-storage-buffer-binding-size")


def open(source: str, plan: LaunchPlan) -> WebgpuMachine:  # noqa: A001
    """The first adapter."""
    adapters = wgpu.gpu.enumerate_adapters_sync()
    adapters = [a for a in adapters if a.info["backend_type"] != "OpenGL"]
    if not adapters:
        raise MachineMissing("--language webgpu: no adapter: needs a driver for Vulkan, Metal or DirectX 12")
    return WebgpuMachine(adapters[0], source, plan)


class WebgpuMachine:
    """A device by wgpu. The text has a module a kernel."""

    def __init__(self, adapter: Any, source: str, plan: LaunchPlan) -> None:
        self.name = f"{adapter.info['device']} ({adapter.info['backend_type']})"
        limits = {name: adapter.limits[name] for name in _LIMITS if name in adapter.limits}
        self._device = adapter.request_device_sync(required_limits=limits)
        self._arrays: dict[str, Any] = {}
        self._pipelines: dict[str, Any] = {}
        self._sources = modules_of(source)

    def allocate(self, name: str, size: int) -> None:
        use = wgpu.BufferUsage
        self._arrays[name] = self._device.create_buffer(
            size=-(-size // 16) * 16, usage=use.STORAGE | use.COPY_SRC | use.COPY_DST
        )

    def write(self, name: str, array: NDArray[Any]) -> None:
        self._device.queue.write_buffer(self._arrays[name], 0, np.ascontiguousarray(array))

    def read(self, name: str, array: NDArray[Any]) -> None:
        raw = self._device.queue.read_buffer(self._arrays[name], 0, array.nbytes)
        array.reshape(-1).view(np.uint8)[:] = np.frombuffer(raw, np.uint8)

    def launch(self, kernel: str, groups: tuple[int, int], arrays: tuple[str, ...]) -> None:
        pipeline = self._pipeline(kernel)
        last = np.array([groups[0] - 1, 0, 0, 0], np.uint32)
        uniform = self._device.create_buffer_with_data(data=last, usage=wgpu.BufferUsage.UNIFORM)
        buffers = [self._arrays[name] for name in arrays] + [uniform]
        entries = [{"binding": i, "resource": {"buffer": buffer}} for i, buffer in enumerate(buffers)]
        group = self._device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)
        encoder = self._device.create_command_encoder()
        run = encoder.begin_compute_pass()
        run.set_pipeline(pipeline)
        run.set_bind_group(0, group)
        run.dispatch_workgroups(*groups)
        run.end()
        self._device.queue.submit([encoder.finish()])

    def _pipeline(self, kernel: str) -> Any:
        if kernel not in self._pipelines:
            module = self._device.create_shader_module(code=self._sources[kernel])
            compute = {"module": module, "entry_point": kernel}
            self._pipelines[kernel] = self._device.create_compute_pipeline(layout="auto", compute=compute)
        return self._pipelines[kernel]


def modules_of(source: str) -> dict[str, str]:
    """The modules of a text, by their kernels."""
    parts = source.split(MARK)[1:]
    return {part.partition("\n")[0]: part.partition("\n")[2] for part in parts}
