"""ONNX Runtime sessions of a bundle's graphs, opened once each, and what its errors mean here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as state

from edgedec.bundle import Bundle
from edgedec.bundle.onnx_rules import DECODER_RULES, check_bundle_graph
from edgedec.errors import BundleCorrupt
from edgedec.runtime import available_cores
from edgedec.runtime.onnx_memory import limit_values

# Below this many bytes of weights per thread, another thread costs more than it saves.
_WEIGHTS_PER_THREAD = 16 << 20
# Exceptions of ONNX Runtime: its own classes, RuntimeError for other C++ exceptions, and UnicodeDecodeError if a
# message quotes bytes of a damaged graph. Anything else is a bug in this program and is not translated.
_ITS_OWN = tuple(
    getattr(state, name)
    for name in (
        "EPFail",
        "EngineError",
        "Fail",
        "InvalidArgument",
        "InvalidGraph",
        "InvalidProtobuf",
        "NoModel",
        "NoSuchFile",
        "NotImplemented",
        "RuntimeException",
    )
)
_OURS = (NotImplementedError, RecursionError)
ERRORS: tuple[type[Exception], ...] = (*_ITS_OWN, RuntimeError, UnicodeDecodeError)


def default_threads(weight_bytes: int) -> int:
    """All CPUs this process may use, but no more than the weights give work for."""
    return min(available_cores(), max(1, weight_bytes // _WEIGHTS_PER_THREAD))


def session_options(threads: int, alone: bool = False) -> ort.SessionOptions:
    """The options of every session.

    Each session has a thread pool of its own: ONNX Runtime's shared pool is configured once per process and rejects
    sessions of other code in it. Unless a session is `alone`, its workers stop spinning early, so that pools do not
    compete for cores.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    if not alone:
        options.add_session_config_entry("session.intra_op.spin_duration_us", "100")
    # An arena would keep the memory of the largest activations so far.
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    limit_values(options)
    return options


class Sessions:
    """Open sessions by file name."""

    def __init__(self, bundle: Bundle, threads: int) -> None:
        self._bundle, self._threads = bundle, threads
        self._open: dict[str, Any] = {}

    def get(self, name: str, alone: bool = False) -> Any:
        """The session of a graph file; opened if it is not."""
        found = self._open.get(name)
        if found is None:
            path = check_bundle_graph(self._bundle, name, DECODER_RULES)
            options = session_options(self._threads, alone)
            with self.blamed(name, "open"):
                found = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            self._open[name] = found
        return found

    def close(self, name: str | None = None) -> None:
        """Close one session, or all."""
        if name is None:
            self._open.clear()
        else:
            self._open.pop(name, None)

    @contextmanager
    def blamed(self, name: str, verb: str) -> Iterator[None]:
        """Translate ONNX Runtime's exceptions to BundleCorrupt."""
        try:
            yield
        except _OURS:
            raise
        except ERRORS as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise BundleCorrupt(f"{self._bundle.path / name}: ONNX Runtime cannot {verb} it: {reason}") from None
