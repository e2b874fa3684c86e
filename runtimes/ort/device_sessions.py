"""Sessions of a bundle's graphs for devices: one per graph, or per graph and bucket where shapes are static."""

from __future__ import annotations

from typing import Any

import onnxruntime as ort
from numpy.typing import NDArray

from edgedec.bundle import Bundle
from edgedec.bundle.onnx_rules import DECODER_RULES, check_bundle_graph
from edgedec.errors import EdgedecError, RuntimeUnavailable
from edgedec.runtimes.ort.contexts import Contexts
from edgedec.runtimes.ort.device_shapes import CallShape
from edgedec.runtimes.ort.providers import Placed
from edgedec.runtimes.ort.sessions import ERRORS, default_threads, session_options


class DeviceSessions:
    """Open sessions on a device, by file name and shape; the head of an NPU's runs on the CPU."""

    def __init__(self, bundle: Bundle, placed: Placed, threads: int) -> None:
        self._bundle, self._placed = bundle, placed
        self._threads = threads or default_threads(len(bundle.weights))
        self._contexts = Contexts(bundle, placed) if placed.provider.contexts else None
        self._open: dict[tuple[str, CallShape | None], Any] = {}

    def get(self, name: str, shape: CallShape | None) -> Any:
        """The session of a graph file at a static shape, or at any; opened if it is not."""
        found = self._open.get((name, shape))
        if found is None:
            found = self._open[name, shape] = self._opened(name, shape)
        return found

    def head(self, name: str) -> Any:
        """The session of the head."""
        if not self._placed.provider.static:
            return self.get(name, None)
        if (name, None) not in self._open:
            options, path = session_options(self._threads), str(check_bundle_graph(self._bundle, name, DECODER_RULES))
            self._open[name, None] = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return self._open[name, None]

    def run(self, name: str, session: Any, feed: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """All outputs by name."""
        names = [output.name for output in session.get_outputs()]
        wanted = {value.name for value in session.get_inputs()}
        try:
            values = session.run(names, {key: value for key, value in feed.items() if key in wanted})
        except ERRORS as error:
            raise self._failed(name, "run", error) from None
        return dict(zip(names, values, strict=True))

    def close(self) -> None:
        """Close all."""
        self._open.clear()

    def _opened(self, name: str, shape: CallShape | None) -> Any:
        options, path = session_options(self._threads), str(check_bundle_graph(self._bundle, name, DECODER_RULES))
        for size, value in (shape.sizes if shape is not None else {}).items():
            options.add_free_dimension_override_by_name(size, value)
        try:
            if self._contexts is not None and shape is not None:
                return self._contexts.open(name, shape, options)
            return self._placed.open(path, options)
        except EdgedecError:
            raise
        except ERRORS as error:
            raise self._failed(name, "open", error) from None

    def _failed(self, name: str, verb: str, error: Exception) -> RuntimeUnavailable:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        return RuntimeUnavailable(f"device {self._placed.device} cannot {verb} {self._bundle.path / name}: {reason}")
