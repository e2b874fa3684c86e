"""A bundle's draft heads: small ONNX graphs on hidden states (`edgedec train-heads` makes them).

The drafter that runs a kind of head declares its inputs and outputs (`HeadInterface`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.folder import Bundle
from edgedec.bundle.onnx_rules import HEAD_RULES, check_bundle_graph
from edgedec.drafters._networks.shared import SharedInstances
from edgedec.errors import BundleCorrupt, UsageError
from edgedec.runtime.onnx_memory import limit_values

if TYPE_CHECKING:
    from edgedec.bundle.manifest import Head

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]
# Below this, starting another thread costs more than it saves.
_BYTES_PER_THREAD = 4 << 20


@dataclass(frozen=True)
class HeadInterface:
    """Names of a graph's inputs, float32 [n, hidden_size] each, and of its outputs; the last axis of the last output
    is as long as the tokens that the head names, or as hidden_size if it names none."""

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


_heads: SharedInstances[DraftHead] = SharedInstances()


def open_head(bundle: Bundle, interface: HeadInterface, threads: int = 1) -> DraftHead:
    """The bundle's head of a kind; UsageError with a remedy if it has none. threads: at most; a small head uses one.
    Sessions share one head: it does not change, and ONNX Runtime may run it from many threads."""
    kind = interface.kind
    if kind not in bundle.manifest.heads:
        raise UsageError(
            f"{bundle.path}: the bundle has no {kind} head; make one with "
            f"`edgedec train-heads {bundle.path} DATA --kind {kind}`"
        )
    size = bundle.manifest.files[bundle.manifest.heads[kind].file].size
    threads = max(1, min(threads, size // _BYTES_PER_THREAD))
    key = str(bundle.path.resolve()), bundle.digest, interface, threads
    return _heads.get(key, lambda: DraftHead(bundle, interface, threads))


class DraftHead:
    """One head, opened."""

    def __init__(self, bundle: Bundle, interface: HeadInterface, threads: int = 1) -> None:
        self.interface, self.kind = interface, interface.kind
        self.facts: Head = bundle.manifest.heads[self.kind]
        self._path, self._hidden = check_bundle_graph(bundle, self.facts.file, HEAD_RULES), bundle.spec.hidden_size
        self._session = self._opened(threads)
        self._run, self._outputs = self._session.run, list(interface.outputs)

    def run(self, *inputs: Floats) -> list[Any]:
        """The outputs, in the order of the interface, for these inputs."""
        found: list[Any] = self._run(self._outputs, dict(zip(self.interface.inputs, inputs, strict=True)))
        return found

    def _opened(self, threads: int) -> Any:
        """Its ONNX Runtime session; no thread spins between runs."""
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        limit_values(options)
        try:
            session = ort.InferenceSession(str(self._path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime's own kinds
            raise BundleCorrupt(f"{self._path}: cannot be opened ({' '.join(str(error).split())})") from None
        inputs, outputs = session.get_inputs(), {o.name: o.shape for o in session.get_outputs()}
        names, results = [i.name for i in inputs], self.interface.outputs
        fits = names == list(self.interface.inputs) and all(i.shape[1:] == [self._hidden] for i in inputs)
        width = self.facts.top if self.facts.top else self._hidden
        if not fits or set(outputs) != set(results) or outputs[results[-1]][-1] != width:
            raise BundleCorrupt(f"{self._path}: is not the {self.kind} head that the manifest describes")
        return session
