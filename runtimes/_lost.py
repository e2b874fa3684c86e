"""Devices that are lost: errors of a GPU that stay for as long as the process does."""

from __future__ import annotations

from typing import Any

from edgedec.kernels.device.interface import DeviceError


def said(error: Exception) -> str | None:
    """What a device said, in one line; None of any other error, which may say anything."""
    return " ".join(str(error).split()) if isinstance(error, DeviceError) else None


def is_lost(runtime: Any) -> bool:
    """After an error of its device: does the device, or that of one of a pair, refuse to be waited for too?"""
    devices = [getattr(engine, "device", None) for engine in getattr(runtime, "engines", (runtime,))]
    try:
        for device in devices:
            if device is not None:
                device.synchronize()
    except Exception:
        return True
    return False
