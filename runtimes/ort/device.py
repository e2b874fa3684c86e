"""The stack of blocks by an execution provider of ONNX Runtime other than the CPU's: a GPU or an NPU.

Graphs consist of plain operators and run on the device as a whole: a node left to the CPU is an error. The host keeps
the KV cache: each call gets the past keys and values and returns those of its rows. On an NPU shapes are buckets, and
the head runs on the CPU.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from edgedec.bundle import Bundle
from edgedec.cache.host import HostCache
from edgedec.errors import RuntimeUnavailable, UsageError
from edgedec.runtime import (
    Call,
    CallResult,
    Capabilities,
    DeviceName,
    Rows,
    RuntimeOptions,
    choose_kv,
    head_outputs,
    lacking_kinds,
)
from edgedec.runtime.checks import check_calls
from edgedec.runtimes.ort.device_graphs import ARTIFACT, DeviceGraphs, device_graphs_of
from edgedec.runtimes.ort.device_inputs import DeviceInputs
from edgedec.runtimes.ort.device_sessions import DeviceSessions
from edgedec.runtimes.ort.device_shapes import ROWS, CallShape, free_shape, static_shape
from edgedec.runtimes.ort.providers import Placed, missing
from edgedec.runtimes.ort.socs import check_soc
from edgedec.runtimes.reference import kv_scales

Array = NDArray[np.float32]
KINDS = ("attention", "mlp")


def device_reason(bundle: Bundle, device: DeviceName) -> str | None:
    """Why this device cannot run the bundle here, in one line; None if it can."""
    lacking = lacking_kinds(bundle, KINDS)
    if lacking is None and ARTIFACT not in bundle.manifest.artifacts:
        return f"the bundle has no files for devices; add them with `edgedec add {ARTIFACT} {bundle.path}`"
    return lacking or missing(device)


def open_on_device(bundle: Bundle, options: RuntimeOptions, device: DeviceName) -> DeviceRuntime:
    """The runtime on a device of this machine."""
    if device.name == "qnn" and device.detail:
        check_soc(device.detail)
    placed = Placed(device)
    return DeviceRuntime(bundle, device_graphs_of(bundle), _kv(bundle, options.kv, placed), placed, options.threads)


def _kv(bundle: Bundle, wanted: str | None, placed: Placed) -> str:
    """The cache format to use: the bundle's first if it is small and the device computes with it, else the device's
    first."""
    can, first = placed.provider.kv, bundle.manifest.kv_formats[0]
    kv = wanted or (first if first in can and first != "f32" else can[0])
    if kv not in can:
        raise RuntimeUnavailable(f"device {placed.device} computes with keys and values in {', '.join(can)}, not {kv}")
    return choose_kv(bundle, kv) if kv == "int8" else kv


class DeviceRuntime:
    """A runtime over a bundle's graphs for devices."""

    name = "ort"

    def __init__(self, bundle: Bundle, graphs: DeviceGraphs, kv: str, placed: Placed, threads: int = 0) -> None:
        self.spec, self.kv = bundle.spec, kv
        provider, self._static = placed.provider, placed.provider.static
        self.capabilities = Capabilities(
            kinds=KINDS,
            kv_formats=provider.kv,
            attention_sums=False,
            adapters=False,
            merge=True,
            attach=True,
            temperatures=True,
            entropy=True,
            largest_call=min(ROWS[-1], bundle.spec.context_length),
            row_buckets=ROWS if self._static else (),
            device=str(placed.device),
            driver=f"onnxruntime {ort.__version__}",
            rounding=provider.rounding,
        )
        self._bundle, self._graphs, self._scales = bundle, graphs, kv_scales(bundle, kv)
        self._sessions = DeviceSessions(bundle, placed, threads)
        self._lock = threading.RLock()

    def new_cache(self, capacity: int) -> HostCache:
        return HostCache(self.spec, capacity, self.kv, self._scales)

    def load(self) -> None:
        """Open the sessions of the first token, which otherwise are opened at first use."""
        shape = static_shape(1, 0, self.spec.context_length) if self._static else None
        for name in self._graphs.parts[self.kv]:
            self._sessions.get(name, shape)
        self._sessions.head(self._graphs.head)

    def release(self) -> None:
        """Close every session; each opens again when it is needed."""
        with self._lock:
            self._sessions.close()

    def forward(self, calls: Sequence[Call]) -> list[CallResult]:
        check_calls(calls, self.spec, self.capabilities)
        with self._lock:
            return [self._forward(call) for call in calls]

    def _forward(self, call: Call) -> CallResult:
        rows, cache, wanted = call.rows, call.cache, call.outputs
        if not isinstance(cache, HostCache) or cache.kv != self.kv:
            raise UsageError("a cache of another engine")
        cache.reserve(rows)
        blocks = list(range(self.spec.n_blocks)) if call.blocks is None else list(call.blocks)
        embedding = self._embed(rows) if call.hidden is None or (self.spec.paired and blocks) else None
        x = np.ascontiguousarray(embedding if call.hidden is None else call.hidden, np.float32)
        states = {-1: x} if -1 in wanted.hidden else {}
        inputs = DeviceInputs(self._bundle, blocks, rows, cache, embedding)
        for name, part in self._parts(blocks, wanted.hidden, cache):
            x = self._run(name, part, x, inputs)
            if part[-1] in wanted.hidden:
                states[part[-1]] = x
        result = head_outputs(self._head(x[wanted.logits_from :]), wanted) if wanted.head else CallResult()
        return CallResult(result.logits, result.ids, result.scores, result.logsum, result.entropy, states)

    def _parts(self, blocks: list[int], hidden: tuple[int, ...], cache: HostCache) -> list[tuple[str, range]]:
        """The graphs to run, with their blocks: parts of the stack, or single blocks where only some are run, where
        the state between them is wanted, and where they hold different slots."""
        graphs, n = self._graphs, self.spec.n_blocks
        parts = [range(a, z) for a, z in itertools.pairwise((*graphs.starts, n))]
        inside = set(hidden) - {-1, *(part[-1] for part in parts)}
        if len(blocks) == n and not inside and cache.same_slots(list(self.spec.attention)):
            return list(zip(graphs.parts[self.kv], parts, strict=True))
        return [(graphs.blocks[self.kv][b], range(b, b + 1)) for b in blocks]

    def _run(self, name: str, blocks: range, x: Array, inputs: DeviceInputs) -> Array:
        """A graph of some blocks on x [count, hidden] -> [count, hidden]."""
        shape = self._shape(len(x), inputs.slots(blocks))
        session = self._sessions.get(name, shape if self._static else None)
        outputs = self._sessions.run(name, session, inputs.feed(blocks, x, shape))
        inputs.take(blocks, outputs)
        found: Array = outputs["hidden_out"][0, : len(x)]
        return found

    def _shape(self, rows: int, slots: int) -> CallShape:
        return static_shape(rows, slots, self.spec.context_length) if self._static else free_shape(rows, slots)

    def _embed(self, rows: Rows) -> Array:
        """The hidden state [count, hidden_size] that enters the first block."""
        if rows.embeddings is not None:
            return np.ascontiguousarray(rows.embeddings, np.float32)
        return self._bundle.gather("embed", rows.tokens[rows.first :]) * np.float32(self.spec.embed_scale)

    def _head(self, hidden: Array) -> Array:
        """hidden [n, hidden_size] -> logits [n, vocab_size]."""
        session: Any = self._sessions.head(self._graphs.head)
        logits: Array = self._sessions.run(self._graphs.head, session, {"hidden": hidden[None]})["logits"][0]
        return logits
