"""The stack of blocks on a GPU: kernels of `kernels/cuda`, the same bytes as the native engine.

Weights, pages and working memory lie on the device; a step brings one piece of memory that says what its rows are,
and runs launches that were recorded when the first step of its shape was run. The device `cuda:emulated`, or
`EDGEDEC_CUDA=emulated`, runs the kernels on the CPU, for tests; a number there chooses one of several GPUs.
"""

from __future__ import annotations

import os

from edgedec.bundle import Bundle
from edgedec.kernels.cuda import emulated
from edgedec.kernels.device.interface import DeviceError
from edgedec.runtime import DeviceName, RuntimeFacts, RuntimeOptions, lacking_kinds
from edgedec.runtimes._device.opening import opened
from edgedec.runtimes._device.runtime import KINDS, LaunchedRuntime
from edgedec.runtimes._selftest.opening import TestedDevice

__all__ = ["FACTS", "KINDS", "CudaRuntime", "open", "unavailable_reason"]

FACTS = RuntimeFacts(KINDS, devices=("cuda",))
DEVICE, EMULATED = "EDGEDEC_CUDA", "emulated"


class CudaRuntime(LaunchedRuntime):
    """A runtime over a bundle's weights on one NVIDIA GPU."""

    name = "cuda"

    @property
    def memory_rate(self) -> float:
        """Bytes a second that the GPU's memory is specified for, as its driver says; 0 if it does not."""
        if isinstance(self.device, emulated.Emulated):
            return 0.0
        from edgedec.kernels.cuda import driver

        try:
            return driver.memory_rate(self.device) if isinstance(self.device, driver.Gpu) else 0.0
        except DeviceError:
            return 0.0


def unavailable_reason(bundle: Bundle, device: DeviceName) -> str | None:
    """None if this runtime can open the bundle on this device, else the reason in one line."""
    if EMULATED in (device.detail, os.environ.get(DEVICE)):
        return emulated.why_not() or lacking_kinds(bundle, KINDS)
    from edgedec.kernels.cuda import driver

    return driver.why_not(device.number) or lacking_kinds(bundle, KINDS)


def open(bundle: Bundle, options: RuntimeOptions) -> CudaRuntime:  # noqa: A001
    return opened(CudaRuntime, bundle, options, open_device)


def open_device(device: DeviceName) -> TestedDevice:
    """The GPU that a device's detail or else EDGEDEC_CUDA names; DeviceError says why not."""
    chosen = os.environ.get(DEVICE, "0")
    if EMULATED in (device.detail, chosen):
        return emulated.Emulated()
    from edgedec.kernels.cuda import driver

    if not device.detail and not chosen.isdigit():
        raise DeviceError(f"{DEVICE}={chosen}: neither the number of a GPU nor `emulated`")
    return driver.Gpu(device.number if device.detail else int(chosen))
