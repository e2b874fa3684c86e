"""The stack of blocks in a library that was compiled ahead of time (`export/compiled`), the same bytes as the native
engine.

A call is one library function with one table of addresses. Pages, caches and step inputs are those of the GPU engines,
in the host's memory. TVM's compiler is not needed to run.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle import Bundle
from edgedec.errors import RuntimeUnavailable
from edgedec.runtime import Call, CallResult, DeviceName, RuntimeFacts, RuntimeOptions, available_cores, lacking_kinds
from edgedec.runtime.machines import MACHINES
from edgedec.runtime.trust import check_code
from edgedec.runtimes._device.adapters import DeviceAdapter
from edgedec.runtimes._device.cache import PagedCache
from edgedec.runtimes._device.call_views import Views
from edgedec.runtimes._device.paged import PagedRuntime
from edgedec.runtimes._device.step import StepMemory
from edgedec.runtimes.tvm import artifact, host
from edgedec.runtimes.tvm.frame import FRAME, ROWS
from edgedec.runtimes.tvm.model import Tables
from edgedec.runtimes.tvm.results import HeadArrays, results
from edgedec.runtimes.tvm.support import KINDS
from edgedec.spec import KV_FORMATS

__all__ = ["FACTS", "KINDS", "TvmRuntime", "open", "unavailable_reason"]

FACTS = RuntimeFacts(KINDS)
# Below this many bytes of weights per thread, synchronization costs more than another thread saves.
_BYTES_PER_THREAD = 8 << 20
_MOST_THREADS = 64


def unavailable_reason(bundle: Bundle, device: DeviceName) -> str | None:
    """None if this runtime can open the bundle here, else the reason in one line."""
    lacking = lacking_kinds(bundle, KINDS) or host.missing()
    if lacking is not None:
        return lacking
    held = [name for name in MACHINES if artifact.PREFIX + name in bundle.manifest.artifacts]
    if not held:
        return f"the bundle has no library; add one with `edgedec add tvm:x86-64-v3 {bundle.path}`"
    if not artifact.usable(bundle):
        return f"the bundle's libraries are for {', '.join(held)}, which this machine is not"
    return None


def open(bundle: Bundle, options: RuntimeOptions) -> TvmRuntime:  # noqa: A001
    """The runtime on the best library that this machine can run."""
    name = artifact.usable(bundle)[0]
    facts = artifact.facts_of(bundle, name)
    kv = options.kv or next((kv for kv in bundle.manifest.kv_formats if kv in facts.kv), facts.kv[0])
    if kv not in facts.kv:
        raise RuntimeUnavailable(f"{bundle.path}: its library for {name} has no KV {kv}, but {', '.join(facts.kv)}")
    check_code(bundle, facts.library)
    threads = options.threads or min(available_cores(), max(1, len(bundle.weights) // _BYTES_PER_THREAD))
    return TvmRuntime(bundle, name, facts, kv, min(threads, _MOST_THREADS))


class TvmRuntime(PagedRuntime):
    """A runtime over a library and a bundle's weights."""

    name = "tvm"

    def __init__(self, bundle: Bundle, machine: str, facts: artifact.LibraryFacts, kv: str, threads: int) -> None:
        self._library = host.Library(bundle.file(facts.library), threads)
        self._run_call = self._library.function("run")
        device = host.HostDevice(self._library)
        super().__init__(bundle.spec, kv, device)
        self.threads, self._step = threads, StepMemory(device)
        self._tables = Tables(bundle, self._pool.offsets)
        self._scratch = host.aligned(facts.scratch, np.uint8)
        self._blocks = host.zeros(self.spec.n_blocks, np.int32)
        self._keep = host.zeros(self.spec.n_blocks + 1, np.int64)
        self._frame = host.zeros(len(FRAME), np.int64)
        self._at = self._frame.ctypes.data
        self._fixed = {
            "threads": threads,
            "scratch": self._scratch.ctypes.data,
            "blocks": self._tables.words.ctypes.data,
            "run": self._blocks.ctypes.data,
            "keep": self._keep.ctypes.data,
            "kv": KV_FORMATS.index(kv),
        }
        self._kept = False
        self._placed: tuple[tuple[int, ...], dict[int, int]] = ((), {})
        self.capabilities = self._declared(
            kinds=KINDS,
            attention_sums=False,
            adapters=False,
            largest_call=ROWS,
            threads=threads,
            isa=machine,
        )

    def load(self) -> None:
        """Nothing to open: the weights are mapped."""

    def release(self) -> None:
        """Nothing to free: the working memory has a fixed size."""

    def _run(
        self,
        blocks: tuple[int, ...],
        adapter: DeviceAdapter | None,
        calls: Sequence[Call],
        caches: Sequence[PagedCache],
    ) -> list[CallResult]:
        views = Views.make(blocks, caches)
        self._place(blocks, views.of | {b: i for i, b in enumerate(b for b in blocks if b in self.spec.recurrent)})
        size = self._step.write(calls, caches, blocks, views, ROWS)
        states = self._states(calls, size.rows)
        head = HeadArrays.make(calls, self.spec.vocab_size, size.head)
        self._fill(head)
        self._library.use_threads()
        self._run_call(self._at)
        return results(calls, states, head)

    def _place(self, blocks: tuple[int, ...], views: dict[int, int]) -> None:
        """Write the blocks to run and the view or state number of each to the table, if they changed since the last
        call."""
        if blocks != self._placed[0]:
            self._blocks[:] = 0
            self._blocks[list(blocks)] = 1
        if views != self._placed[1]:
            for b, view in views.items():
                self._tables.words[b, self._tables.views[b]] = view
        self._placed = blocks, views

    def _states(self, calls: Sequence[Call], rows: int) -> dict[int, NDArray[np.float32]]:
        """Arrays of the requested states; writes their addresses to the table."""
        wanted = sorted({b for call in calls for b in call.outputs.hidden})
        if not wanted and not self._kept:
            return {}
        self._kept = bool(wanted)
        states = {b: host.aligned(rows * self.spec.hidden_size, np.float32) for b in wanted}
        self._keep[:] = 0
        for b, array in states.items():
            self._keep[b] = array.ctypes.data  # -1, the embedding, is the last
        return {b: array.reshape(rows, -1) for b, array in states.items()}

    def _fill(self, head: HeadArrays) -> None:
        """Write the table of a call."""
        facts = {"step": self._step.at, "top": head.top, **self._fixed, **head.addresses()}
        self._frame[:] = [facts[name] for name in FRAME]
