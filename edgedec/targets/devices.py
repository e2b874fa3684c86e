"""Devices of ONNX Runtime's execution providers (`--device`), and browsers."""

from __future__ import annotations

from importlib.util import find_spec

from edgedec.targets._target import Target, Targets, lacking_packages

_KINDS = ("attention", "mlp")

_DEVICES = ("webgpu", "openvino", "cuda", "dml", "coreml")


def _missing() -> str | None:
    """Why none of the devices can be used here; None if the package of one is here."""
    if find_spec("onnxruntime") is None:
        return "onnxruntime is not installed"
    from edgedec.runtime.registry import missing_device

    if any(missing_device("ort", name) is None for name in _DEVICES):
        return None
    return f"onnxruntime has no provider here but the CPU's: none for {', '.join(_DEVICES)}"


FACTS = Targets((
    Target(
        "devices", "ort", "ONNX Runtime on --device webgpu, openvino, cuda, dml or coreml", _KINDS, ("f32", "f16"),
        "emulated", needs="the device's package: [devices](devices.md)", missing=_missing, device="webgpu",
        add=True,
    ),
    Target(
        "qnn:SM8650", "ort", "Qualcomm's NPU, and those of other SoCs by name", _KINDS, ("f32", "f16", "int8"),
        "emulated", needs="onnxruntime-qnn", missing=lacking_packages("onnxruntime_qnn"),
        device="qnn:SM8650", add=True,
    ),
    Target(
        "web", "", "onnxruntime-web in a browser; edgedec's own engine there needs no files", _KINDS, ("f32",),
        "native", needs="a browser", trees=False, add=True,
    ),
))  # fmt: skip
