"""The device runtime with the CPU in the device's place: its graphs, shapes and caches, without a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import onnxruntime as ort
import pytest

from edgedec.bundle import Bundle
from edgedec.errors import RuntimeUnavailable
from edgedec.runtime import DeviceName, RuntimeOptions
from edgedec.runtimes.ort import device, providers
from edgedec.runtimes.ort.device import DeviceRuntime


def on_cpu(monkeypatch: pytest.MonkeyPatch, static: bool) -> Callable[[Bundle, RuntimeOptions], DeviceRuntime]:
    """How to open a bundle on a device that the CPU computes for, in buckets or in any shape."""
    known = providers.PROVIDERS["dml"]
    stand_in = replace(known, kv=("f32", "f16", "int8"), static=static, ep="CPUExecutionProvider")
    monkeypatch.setitem(providers.PROVIDERS, "dml", stand_in)

    def open_session(self: providers.Placed, path: str, options: ort.SessionOptions) -> Any:
        return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    monkeypatch.setattr(providers.Placed, "open", open_session)
    monkeypatch.setattr(device, "missing", lambda place: None)
    return opened


def opened(bundle: Bundle, options: RuntimeOptions) -> DeviceRuntime:
    """The bundle on the device; RuntimeUnavailable as the registry raises it."""
    reason = device.device_reason(bundle, DeviceName("dml"))
    if reason is not None:
        raise RuntimeUnavailable(reason)
    return device.open_on_device(bundle, options, DeviceName("dml"))
