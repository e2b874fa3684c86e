"""ONNX graphs for the devices of the ort runtime (`--device webgpu`, `cuda`, `qnn`, …): plain operators, static shapes
where a device wants them, keys and values kept by the host."""

from __future__ import annotations

from pathlib import Path

from edgedec.bundle.manifest import Artifact
from edgedec.export.artifacts import ArtifactFacts, Request
from edgedec.export.onnx import unsupported_on_devices, write_portable
from edgedec.runtimes.ort.device_graphs import FORMATS, DeviceGraphs
from edgedec.spec import ModelSpec
from edgedec.storage.serde import to_json

# The limit of weights per part of the stack: NPU compilers and contexts are limited to 2 GB.
MOST = 1500 << 20
# Made on request only, because the graphs double a bundle's files.
FACTS = ArtifactFacts(on_request=True, low_bits=True)


def reason(spec: ModelSpec) -> str | None:
    """Why devices cannot run the model; None if they can."""
    return unsupported_on_devices(spec)


def write(folder: Path, request: Request) -> Artifact:
    """Write the graphs into `folder`."""
    formats = tuple(kv for kv in FORMATS if kv in ("f32", "f16") or kv in request.kv)
    head, blocks, parts, starts = write_portable(folder, request.layout, formats, "device_", MOST)
    graphs = DeviceGraphs(head, blocks, parts, starts)
    return Artifact(tuple(sorted(graphs.names)), to_json(graphs))
