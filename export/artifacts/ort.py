"""ONNX graphs for the ort runtime: by block, of the stack, the head, and of the whole model where that is possible."""

from __future__ import annotations

from pathlib import Path

from edgedec.bundle.manifest import Artifact
from edgedec.export.artifacts import ArtifactFacts, Request
from edgedec.export.onnx import unsupported, whole_model_reason, write_blocks, write_ends, write_whole_model
from edgedec.runtimes.ort import KINDS
from edgedec.runtimes.ort.graphs import Graphs
from edgedec.spec import ModelSpec
from edgedec.storage.serde import to_json

FACTS = ArtifactFacts(low_bits=True)


def reason(spec: ModelSpec) -> str | None:
    """Why ONNX Runtime cannot run the model; None if it can."""
    lacking = [kind for kind in spec.kinds if kind not in KINDS]
    return f"it has {', '.join(lacking)} blocks" if lacking else unsupported(spec)


def write(folder: Path, request: Request) -> Artifact:
    """Write the graphs into `folder`."""
    embed, head = write_ends(folder, request.layout)
    blocks, stack = write_blocks(folder, request.layout, request.kv)
    whole = whole_model_reason(request.layout.spec) is None
    model = write_whole_model(folder, request.layout, request.model_kv) if whole else None
    graphs = Graphs(embed, head, blocks, stack, model, request.model_kv if whole else "")
    return Artifact(tuple(sorted(graphs.names)), to_json(graphs))
