"""The OpenCL devices that tests of the engine find."""

from __future__ import annotations

from edgedec.kernels.device.interface import DeviceError
from edgedec.kernels.opencl import library


def why_not() -> str | None:
    """Why the first OpenCL device cannot run the engine; None if it can."""
    try:
        found = library.devices()
        return found[0].lacks() if found else "no OpenCL device"
    except DeviceError as error:
        return str(error)


def first() -> library.DeviceFacts:
    """The first OpenCL device."""
    return library.devices()[0]
