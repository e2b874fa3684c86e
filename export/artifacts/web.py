"""The graph of the whole model for onnxruntime-web, on WebAssembly or WebGPU.

Its cache is float, without float16, which not every browser's GPU has. `runtimes/web/ort.js` runs it; the edgedec
engine in a browser needs no files.
"""

from __future__ import annotations

from pathlib import Path

from edgedec.bundle.manifest import Artifact
from edgedec.export.artifacts import ArtifactFacts, Request
from edgedec.export.onnx import whole_model_reason, write_whole_model
from edgedec.spec import ModelSpec

FACTS = ArtifactFacts(on_request=True)


def reason(spec: ModelSpec) -> str | None:
    """Why onnxruntime-web cannot run the model; None if it can."""
    return whole_model_reason(spec)


def write(folder: Path, request: Request) -> Artifact:
    """Write the graph into `folder`."""
    model = write_whole_model(folder, request.layout, "f32", "web", no_halves=True)
    return Artifact((model,), {"model": model})
