"""The stack of blocks on a GPU: kernels of `kernels/cuda`, the same bytes as the native engine.

Weights, pages and working memory are on the device. A step copies one block of memory that describes its rows, then
runs launches that were recorded at the first step of the same shape. The device `cuda:emulated`, or
`EDGEDEC_CUDA=emulated`, runs the kernels on the CPU, for tests; a number there chooses one of several GPUs.
"""

from __future__ import annotations

import os

from edgedec.bundle import Bundle
from edgedec.kernels.cuda import emulated
from edgedec.kernels.device.interface import DeviceError
from edgedec.runtime import DeviceName, RuntimeFacts, RuntimeOptions, lacking_kinds
from edgedec.runtimes._device.opening import opened
from edgedec.runtimes._device.runtime import FACTS_OF_MODELS, KINDS, LaunchedRuntime
from edgedec.runtimes._selftest.opening import TestedDevice

__all__ = ["FACTS", "FACTS_OF_MODELS", "KINDS", "CudaRuntime", "open", "unavailable_reason"]

FACTS = RuntimeFacts(KINDS, devices=("cuda",), low_bits=True)
DEVICE, EMULATED = "EDGEDEC_CUDA", "emulated"


class CudaRuntime(LaunchedRuntime):
    """A runtime over a bundle's weights on one NVIDIA GPU."""

    name = "cuda"

    @property
    def memory_rate(self) -> float:
        """Specified memory bandwidth of the GPU in bytes a second, from its driver; 0 if unknown."""
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
        return emulated.why_not() or lacking_kinds(bundle, KINDS, facts=FACTS_OF_MODELS)
    from edgedec.kernels.cuda import driver

    return driver.why_not(device.number) or lacking_kinds(bundle, KINDS, facts=FACTS_OF_MODELS)


def open(bundle: Bundle, options: RuntimeOptions) -> CudaRuntime:  # noqa: A001
    return opened(CudaRuntime, bundle, options, open_device)


def open_device(device: DeviceName) -> TestedDevice:
    """The GPU named by the device's detail or else by EDGEDEC_CUDA. DeviceError gives the reason for a failure."""
    chosen = os.environ.get(DEVICE, "0")
    if EMULATED in (device.detail, chosen):
        return emulated.Emulated()
    from edgedec.kernels.cuda import driver

    if not device.detail and not chosen.isdigit():
        raise DeviceError(f"{DEVICE}={chosen}: neither the number of a GPU nor `emulated`")
    return driver.Gpu(device.number if device.detail else int(chosen))
