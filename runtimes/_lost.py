"""Lost devices: errors of a GPU that persist until the process ends."""

from __future__ import annotations

from typing import Any

from edgedec.kernels.device.interface import DeviceError


def said(error: Exception) -> str | None:
    """The message of a device's error in one line; None for errors of other kinds."""
    return " ".join(str(error).split()) if isinstance(error, DeviceError) else None


def is_lost(runtime: Any) -> bool:
    """Whether a runtime's device (either of a pair) is lost: after an error, synchronizing with it fails too."""
    devices = [getattr(engine, "device", None) for engine in getattr(runtime, "engines", (runtime,))]
    try:
        for device in devices:
            if device is not None:
                device.synchronize()
    except Exception:
        return True
    return False
