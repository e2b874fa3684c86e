"""The runtimes that need no compiler: edgedec's CPU and CUDA engines, the reference, ONNX Runtime on the CPU."""

from __future__ import annotations

from collections.abc import Callable

from edgedec.bundle import Bundle
from edgedec.bundle.locate import NANO, find
from edgedec.runtime import unavailable_reason
from edgedec.spec import KV_FORMATS
from edgedec.targets._target import Target, Targets, lacking_packages

_KINDS = ("attention", "conv", "delta", "mlp", "moe", "ssm")
# Of our own engines on the CPU besides.
_OURS = (
    *("altup", "channel_mix", "gmu", "latent", "laurel", "lookup", "power_law", "pre_router", "rwkv7", "s6"),
    "shared_attention",
)


def _cannot(engine: str) -> Callable[[], str | None]:
    """Why an engine cannot run the bundled model here."""
    return lambda: unavailable_reason(engine, Bundle.open(find(NANO)))


FACTS = Targets((
    Target(
        "native", "native", "edgedec's CPU engine in C++", (*_KINDS, *_OURS), KV_FORMATS, "native",
        missing=_cannot("native"),
    ),
    Target(
        "reference", "reference", "the model in numpy, the oracle of the tests", (*_KINDS, *_OURS),
        KV_FORMATS, "native",
    ),
    Target(
        "cuda", "cuda", "edgedec's GPU engine", _KINDS, KV_FORMATS, "native",
        needs="an NVIDIA GPU, its driver, and the extra cuda or EDGEDEC_CUDA_CUBINS", missing=_cannot("cuda"),
    ),
    Target(
        "opencl", "opencl", "edgedec's engine for GPUs of phones and laptops", _KINDS, KV_FORMATS, "emulated",
        needs="a driver for OpenCL", missing=_cannot("opencl"),
    ),
    Target("ort", "ort", "ONNX Runtime on the CPU", _KINDS, KV_FORMATS, "native", add=True),
    Target(
        "genai", "", "a folder for onnxruntime-genai", ("attention", "mlp"), KV_FORMATS, "native",
        needs="onnxruntime-genai", missing=lacking_packages("onnxruntime_genai"), trees=False, add=True,
    ),
))  # fmt: skip
