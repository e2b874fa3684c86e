"""ONNX Runtime's execution providers by device: their packages, session options, and the nodes that they do not take.

A provider silently leaves nodes that it cannot compute to the CPU, or all nodes if its libraries are missing. Sessions
are therefore opened with the CPU fallback disabled; after a failure the session is opened once more with it, to list
the nodes that were left.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import onnxruntime as ort

from edgedec.errors import RuntimeUnavailable
from edgedec.runtime import DeviceName

_ONLY_HERE = "session.disable_cpu_ep_fallback"
_RECORD = "session.record_ep_graph_assignment_info"
_NAMED = 4
# The option that selects one of several devices of a provider.
_NUMBER = "device_id"
# Rounding error of logits with sums of float16 numbers.
HALF = 0.05
_registered: set[str] = set()
_lock = threading.Lock()


@dataclass(frozen=True)
class Provider:
    """ep: ONNX Runtime's name; package: what to install; plugin: the module that brings it as a library, or "" where it
    is part of onnxruntime; wants: requirements of a device, for messages; kv: supported cache formats; static: are
    shapes fixed when a graph is opened; contexts: are compiled graphs kept; rounding: as in `Capabilities.rounding`;
    soc: the option that a device's detail is passed as."""

    ep: str
    package: str
    plugin: str = ""
    wants: str = "its driver"
    kv: tuple[str, ...] = ("f32", "f16")
    static: bool = False
    contexts: bool = False
    rounding: float = 0.0
    soc: str = ""
    options: dict[str, str] = field(default_factory=dict)


PROVIDERS: dict[str, Provider] = {
    "cuda": Provider(
        "CUDAExecutionProvider", "onnxruntime-gpu", wants="an NVIDIA driver with CUDA and cuDNN", soc=_NUMBER
    ),
    "dml": Provider("DmlExecutionProvider", "onnxruntime-directml", wants="Windows with DirectX 12", soc=_NUMBER),
    "coreml": Provider(
        "CoreMLExecutionProvider",
        "onnxruntime",
        wants="macOS or iOS",
        static=True,
        rounding=HALF,
        options={"ModelFormat": "MLProgram", "RequireStaticInputShapes": "1"},
    ),
    "openvino": Provider(
        "OpenVINOExecutionProvider",
        "onnxruntime-openvino",
        wants="an Intel CPU, GPU or NPU",
        static=True,
        rounding=HALF,
        soc="device_type",
    ),
    "webgpu": Provider(
        "WebGpuExecutionProvider",
        "onnxruntime-ep-webgpu",
        "onnxruntime_ep_webgpu",
        wants="Vulkan 1.3, Metal or DirectX 12",
        kv=("f32",),
    ),
    "qnn": Provider(
        "QNNExecutionProvider",
        "onnxruntime-qnn",
        "onnxruntime_qnn",
        wants="a Snapdragon, or its simulator on x86-64 Linux",
        kv=("f16", "int8", "f32"),
        static=True,
        contexts=True,
        rounding=HALF,
        soc="soc_model",
        options={"backend_type": "htp", "htp_performance_mode": "burst"},
    ),
}


def missing(device: DeviceName) -> str | None:
    """Why a device's provider is not available, in one line; None if it is."""
    provider = PROVIDERS[device.name]
    if provider.plugin:
        here = find_spec(provider.plugin) is not None
    else:
        here = provider.ep in ort.get_available_providers()
    if here:
        return None
    return f"device {device.name} needs {provider.ep}, which is not installed; pip install {provider.package}"


class Placed:
    """Sessions that run on one device as a whole."""

    def __init__(self, device: DeviceName) -> None:
        self.device, self.provider = device, PROVIDERS[device.name]
        detail = str(device.number) if self.provider.soc == _NUMBER and device.detail else device.detail
        named = {self.provider.soc: detail} if self.provider.soc and detail else {}
        self.options = {**self.provider.options, **named}
        self._devices = _found(device, self.provider) if self.provider.plugin else []

    def open(self, path: str, options: ort.SessionOptions) -> Any:
        """A session of a graph file; RuntimeUnavailable names the nodes that the device does not compute."""
        options.add_session_config_entry(_ONLY_HERE, "1")
        try:
            return self._session(path, options)
        except Exception as error:
            if "fallback to CPU EP" not in str(error):
                raise
        options.add_session_config_entry(_ONLY_HERE, "0")
        options.add_session_config_entry(_RECORD, "1")
        raise RuntimeUnavailable(self._left(path, self._session(path, options, again=True)))

    def _session(self, path: str, options: ort.SessionOptions, again: bool = False) -> Any:
        if not self.provider.plugin:
            return ort.InferenceSession(path, options, providers=[(self.provider.ep, self.options)])
        if not again:
            options.add_provider_for_devices(self._devices, self.options)
        return ort.InferenceSession(path, options)

    def _left(self, path: str, session: Any) -> str:
        """The nodes of a graph that the provider did not take."""
        name, nodes, taken = path.rpartition("/")[2], list[str](), 0
        for part in session.get_provider_graph_assignment_info():
            if part.ep_name == self.provider.ep:
                taken += len(part.get_nodes())
            else:
                nodes += [f"{node.op_type} ({node.name})" for node in part.get_nodes()]
        if not taken:
            wants = f"it wants {self.provider.wants}"
            return f"device {self.device}: {self.provider.ep} computes nothing of {name} here: {wants}"
        some = ", ".join(nodes[:_NAMED]) + (", …" if len(nodes) > _NAMED else "")
        return f"device {self.device} cannot compute {len(nodes)} of {len(nodes) + taken} nodes of {name}: {some}"


def _found(device: DeviceName, provider: Provider) -> list[Any]:
    """The hardware that the plugin finds under this name; RuntimeUnavailable if there is none."""
    with _lock:
        if provider.ep not in _registered:
            plugin = import_module(provider.plugin)
            ort.register_execution_provider_library(provider.ep, plugin.get_library_path())
            _registered.add(provider.ep)
    devices = [found for found in ort.get_ep_devices() if found.ep_name == provider.ep]
    number = device.number if device.detail.isdigit() else 0
    if number < len(devices):
        return devices[number : number + 1]
    raise RuntimeUnavailable(
        f"device {device}: {provider.package} finds {len(devices)} here; it wants {provider.wants}"
    )
