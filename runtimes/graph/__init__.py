"""A decoder as one ONNX graph from another exporter, on ONNX Runtime's CPU provider.

The graph has the interface of `optimum-cli export onnx --task text-generation-with-past`: inputs are tokens, an
attention mask and the past keys and values; outputs are logits and all keys and values. Rows are a chain, and every
call runs the whole graph.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from edgedec.bundle import Bundle
from edgedec.errors import BundleCorrupt, ContextFull, RuntimeUnavailable, UsageError
from edgedec.runtime import (
    Call,
    CallResult,
    Capabilities,
    DeviceName,
    RuntimeFacts,
    RuntimeOptions,
    choose_kv,
    head_outputs,
    lacking_kinds,
)
from edgedec.runtime.checks import check_calls
from edgedec.runtime.onnx_memory import returning
from edgedec.runtimes.graph.cache import DTYPES, GraphCache
from edgedec.runtimes.graph.interface import Interface, interface_of
from edgedec.runtimes.ort.sessions import Sessions, default_threads

__all__ = ["ARTIFACT", "FACTS", "KINDS", "GraphCache", "GraphRuntime", "open", "unavailable_reason"]

ARTIFACT = "graph"
KINDS = ("opaque",)
FACTS = RuntimeFacts(KINDS, files=False)


def unavailable_reason(bundle: Bundle, device: DeviceName) -> str | None:
    """None if this runtime can open the bundle here, else the reason in one line."""
    lacking = lacking_kinds(bundle, KINDS)
    if lacking is None and ARTIFACT not in bundle.manifest.artifacts:
        return "the bundle has no graph; import the model again"
    return lacking


def open(bundle: Bundle, options: RuntimeOptions) -> GraphRuntime:  # noqa: A001
    files = bundle.manifest.artifacts[ARTIFACT].files
    graphs = [name for name in files if name.endswith(".onnx")]
    if len(graphs) != 1 or bundle.manifest.artifacts[ARTIFACT].facts:
        raise BundleCorrupt(f"{bundle.path}: artifacts.{ARTIFACT}: expected one ONNX graph and no facts")
    if options.kv not in (None, *bundle.manifest.kv_formats):
        raise RuntimeUnavailable(
            f"{bundle.path}: its graph keeps {bundle.manifest.kv_formats[0]}, not --kv {options.kv}"
        )
    size = sum(bundle.manifest.files[name].size for name in files)
    return GraphRuntime(bundle, graphs[0], choose_kv(bundle, options.kv), options.threads or default_threads(size))


class GraphRuntime:
    """A runtime over one graph; the calls of a forward run one after another."""

    name = "graph"

    def __init__(self, bundle: Bundle, graph: str, kv: str, threads: int) -> None:
        if kv not in DTYPES:
            raise BundleCorrupt(f"{bundle.path}: KV {kv}: a graph keeps f32 or f16")
        self.spec, self.kv, self.threads = bundle.spec, kv, threads
        self.capabilities = Capabilities(
            kinds=KINDS,
            kv_formats=bundle.manifest.kv_formats,
            trees=False,
            groups=False,
            slices=False,
            selections=False,
            embeddings=False,
            drop=False,
            attention_sums=False,
            adapters=False,
            hidden=False,
            temperatures=True,
            entropy=True,
            threads=threads,
        )
        self._bundle, self._graph = bundle, graph
        self._sessions, self._lock = Sessions(bundle, threads), threading.RLock()
        self._interface: Interface | None = None

    def new_cache(self, capacity: int) -> GraphCache:
        return GraphCache(self.spec, capacity, self.kv)

    def load(self) -> None:
        """Open the session, which otherwise is opened at first use."""
        self._opened()

    def release(self) -> None:
        """Close the session; it opens again when it is needed."""
        with self._lock:
            self._sessions.close()

    def forward(self, calls: Sequence[Call]) -> list[CallResult]:
        check_calls(calls, self.spec, self.capabilities)
        for call in calls:
            _check_cache(call)
        with self._lock:
            return [self._forward(call) for call in calls]

    def _forward(self, call: Call) -> CallResult:
        rows, cache = call.rows, call.cache
        assert isinstance(cache, GraphCache)
        session, interface = self._opened()
        start = cache.begin(rows)
        feeds = interface.feeds(rows.tokens[rows.first :], start, cache.held(start))
        wanted = [interface.logits, *interface.present] if call.outputs.head else list(interface.present)
        with self._sessions.blamed(self._graph, "run"):
            found: list[Any] = session.run_with_ort_values(wanted, feeds, returning())
        logits = found.pop(0).numpy() if call.outputs.head else None
        self._check_present(found, start + rows.count)
        cache.write(rows, found)
        if logits is None:
            return CallResult()
        return head_outputs(self._rows_of(logits, rows.count)[call.outputs.logits_from :], call.outputs)

    def _rows_of(self, logits: Any, count: int) -> Any:
        """The logits output [1, count, vocab_size] as float32 [count, vocab_size]."""
        if logits.shape != (1, count, self.spec.vocab_size):
            raise BundleCorrupt(f"{self._bundle.path}: logits of shape {list(logits.shape)} for {count} rows")
        return np.asarray(logits[0], np.float32)

    def _check_present(self, found: Sequence[Any], slots: int) -> None:
        """Check that the output keys and values have the past slots plus the rows of this call."""
        for value, block in zip(found, (b for b in self.spec.blocks for _ in "kv"), strict=True):
            if value.shape() != [1, block.n_kv_heads, slots, block.head_dim]:  # type: ignore[union-attr]
                raise BundleCorrupt(f"{self._bundle.path}: keys of shape {value.shape()} after {slots} tokens")

    def _opened(self) -> tuple[Any, Interface]:
        with self._lock:
            session = self._sessions.get(self._graph, alone=True)
            if self._interface is None:
                found = interface_of(session, str(self._bundle.file(self._graph)), BundleCorrupt)
                if (found.spec_blocks, found.kv) != (self.spec.blocks, self.kv):
                    raise BundleCorrupt(f"{self._bundle.path}: the graph's cache is not the one of the manifest")
                self._interface = found
            return session, self._interface


def _check_cache(call: Call) -> None:
    """Raise UsageError or ContextFull for a bad call, before anything runs."""
    rows, cache = call.rows, call.cache
    if not isinstance(cache, GraphCache):
        raise UsageError("the cache is of another runtime: use one of this runtime's new_cache()")
    if cache.length + len(rows) > cache.capacity:
        raise ContextFull(f"{cache.length + len(rows)} rows do not fit a cache of {cache.capacity}")
    expected = np.arange(cache.length, cache.length + len(rows))
    if not np.array_equal(rows.positions, expected):
        raise UsageError(
            f"positions from {rows.positions[0]} on: this runtime takes the next ones, from {cache.length}"
        )
