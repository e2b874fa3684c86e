"""The stack of blocks on a GPU of a phone or a laptop, through OpenCL: the host code of `cuda` with the kernels of
`kernels/opencl`. Results are the native engine's bytes on devices that round as in IEEE 754.

It runs on the first GPU; `EDGEDEC_OPENCL` names another device by its number or a part of its name.
"""

from __future__ import annotations

from edgedec.bundle import Bundle
from edgedec.kernels.device.interface import DeviceError
from edgedec.kernels.opencl import driver, library
from edgedec.runtime import DeviceName, RuntimeFacts, RuntimeOptions, lacking_kinds
from edgedec.runtimes._device.opening import opened
from edgedec.runtimes._device.runtime import FACTS_OF_MODELS, KINDS, LaunchedRuntime
from edgedec.runtimes._selftest.opening import TestedDevice

__all__ = ["FACTS", "FACTS_OF_MODELS", "KINDS", "OpenclRuntime", "open", "unavailable_reason"]

FACTS = RuntimeFacts(KINDS, devices=("opencl",), numbered_gpus=True, low_bits=True)


class OpenclRuntime(LaunchedRuntime):
    """A runtime over a bundle's weights on one OpenCL device."""

    name = "opencl"


def unavailable_reason(bundle: Bundle, device: DeviceName) -> str | None:
    """None if this runtime can open the bundle on this device, else the reason in one line."""
    return driver.why_not(device.detail) or lacking_kinds(bundle, KINDS, facts=FACTS_OF_MODELS)


def gpu_numbers() -> list[int]:
    """The GPUs that this engine can use, by their numbers in the list of all devices; empty without a driver."""
    try:
        return [i for i, facts in enumerate(library.devices()) if facts.gpu and not facts.lacks()]
    except DeviceError:
        return []


def open(bundle: Bundle, options: RuntimeOptions) -> OpenclRuntime:  # noqa: A001
    return opened(OpenclRuntime, bundle, options, open_device)


def open_device(device: DeviceName) -> TestedDevice:
    """The device that the detail (a number or a part of a name) or else EDGEDEC_OPENCL names, else the first GPU."""
    return driver.OpenclDevice(driver.chosen(device.detail))
