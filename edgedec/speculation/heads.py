"""A bundle's draft heads at work: small ONNX graphs on hidden states (`edgedec train-heads` makes them)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.folder import Bundle
from edgedec.errors import BundleCorrupt, UsageError
from edgedec.speculation.shared import Opened

if TYPE_CHECKING:
    from edgedec.bundle.manifest import Head

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]
# Below this, waking another thread costs more than it saves.
_BYTES_PER_THREAD = 4 << 20
_heads: Opened[DraftHead] = Opened()
_INPUTS = {"medusa": ["hidden"], "hydra": ["state", "embedding"], "exit": ["hidden"]}
_OUTPUTS = {"medusa": ["ids", "logprobs"], "hydra": ["state_out", "ids", "logprobs"], "exit": ["hidden_out"]}


def open_head(bundle: Bundle, kind: str, threads: int = 1) -> DraftHead:
    """The bundle's head of a kind; UsageError, with what to do, if it has none. threads: at most; a small head
    takes one. Sessions hold one head in common: it learns nothing, and ONNX Runtime runs it for many threads."""
    if kind not in bundle.manifest.heads:
        raise UsageError(
            f"{bundle.path}: the bundle has no {kind} head; make one with "
            f"`edgedec train-heads {bundle.path} DATA --kind {kind}`"
        )
    size = bundle.manifest.files[bundle.manifest.heads[kind].file].size
    threads = max(1, min(threads, size // _BYTES_PER_THREAD))
    key = str(bundle.path.resolve()), bundle.digest, kind, threads
    return _heads.get(key, lambda: DraftHead(bundle, kind, threads))


class DraftHead:
    """One head. `medusa`: of each row the likeliest tokens at each depth; `hydra`: one step; `exit`: the adapter."""

    def __init__(self, bundle: Bundle, kind: str, threads: int = 1) -> None:
        self.kind = kind
        self.facts: Head = bundle.manifest.heads[kind]
        self._path, self._hidden = bundle.file(self.facts.file), bundle.spec.hidden_size
        self._session = self._opened(threads)
        self._run, self._outputs = self._session.run, _OUTPUTS[kind]

    def _opened(self, threads: int) -> Any:
        """Its session; nothing is awake between runs."""
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            session = ort.InferenceSession(str(self._path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime's own kinds
            raise BundleCorrupt(f"{self._path}: cannot be opened ({' '.join(str(error).split())})") from None
        inputs, outputs = session.get_inputs(), {o.name: o.shape for o in session.get_outputs()}
        fits = [i.name for i in inputs] == _INPUTS[self.kind] and all(i.shape[1:] == [self._hidden] for i in inputs)
        names = self.facts.top if self.facts.top else self._hidden
        if not fits or set(outputs) != set(_OUTPUTS[self.kind]) or outputs[_OUTPUTS[self.kind][-1]][-1] != names:
            raise BundleCorrupt(f"{self._path}: is not the {self.kind} head that the manifest describes")
        return session

    def medusa(self, hidden: Floats) -> tuple[Ids, Floats]:
        """hidden [n, H] -> ids, log-probabilities [n, depth, top], the likeliest first."""
        ids, logprobs = self._run(self._outputs, {"hidden": hidden})
        return ids, logprobs

    def hydra(self, state: Floats, embedding: Floats) -> tuple[Floats, Ids, Floats]:
        """state, embedding [n, H] -> the next state [n, H]; ids, log-probabilities [n, top], the likeliest first."""
        after, ids, logprobs = self._run(self._outputs, {"state": state, "embedding": embedding})
        return after, ids, logprobs

    def exit(self, hidden: Floats) -> Floats:
        """hidden [n, H] behind `facts.layer` layers -> [n, H], for the model's own norm and head."""
        adapted: Floats = self._run(self._outputs, {"hidden": hidden})[0]
        return adapted
