"""The dense networks of a draft (`export.drafts`): small ONNX graphs, opened once and shared by all sessions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle import Bundle
from edgedec.bundle.onnx_rules import HEAD_RULES, check_bundle_graph
from edgedec.drafters._networks.shared import SharedInstances
from edgedec.errors import BundleCorrupt
from edgedec.runtime.onnx_memory import limit_values

Floats = NDArray[np.float32]
# Below this, starting another thread costs more than it saves.
_BYTES_PER_THREAD = 4 << 20


class Network:
    """One graph: `inputs` are the names of its inputs, float32 [n, width] each, `outputs` those of its outputs;
    `metadata`: what it says of itself."""

    def __init__(self, path: Path, threads: int) -> None:
        self._path, self._session = path, _session(path, threads)
        self.inputs = [value.name for value in self._session.get_inputs()]
        self.widths = [value.shape[1] for value in self._session.get_inputs()]
        self.metadata: dict[str, str] = self._session.get_modelmeta().custom_metadata_map
        self.outputs, self._run = [value.name for value in self._session.get_outputs()], self._session.run

    def run(self, *inputs: Floats) -> list[Any]:
        """Its outputs, in the order of the graph."""
        found: list[Any] = self._run(self.outputs, dict(zip(self.inputs, inputs, strict=True)))
        return found


_networks: SharedInstances[Network] = SharedInstances()


def open_network(bundle: Bundle, file: str, threads: int = 1) -> Network:
    """The network in a file of the bundle. threads: at most; a small one takes one."""
    path = bundle.file(file)
    threads = max(1, min(threads, bundle.manifest.files[file].size // _BYTES_PER_THREAD))
    key = str(path.resolve()), bundle.manifest.files[file].sha256, threads
    return _networks.get(key, lambda: Network(check_bundle_graph(bundle, file, HEAD_RULES), threads))


def _session(path: Path, threads: int) -> Any:
    """Its ONNX Runtime session; no thread spins between runs."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    limit_values(options)
    try:
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's own kinds
        raise BundleCorrupt(f"{path}: cannot be opened ({' '.join(str(error).split())})") from None
