"""The stack of blocks on the CPU kernels of `kernels/cpu`: one call of C++ for any blocks and rows of any sequences.

The weights are memory-mapped and used in place. A row's outputs are the same bytes whatever other rows share its call.
Keys and values lie in pages that forks share; int8 and int4 caches have a scale for each token and head, computed when
they are written: no calibration is needed, and the layout is not ONNX Runtime's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle import Bundle
from edgedec.errors import ContextFull, RuntimeUnavailable, UsageError
from edgedec.kernels import cpu
from edgedec.kernels.cpu import codes, loader
from edgedec.runtime import (
    Call,
    CallResult,
    Capabilities,
    DeviceName,
    RuntimeFacts,
    RuntimeOptions,
    StepParts,
    Stepped,
    available_cores,
    lacking_kinds,
    largest_call,
)
from edgedec.runtimes import _native_drafting
from edgedec.runtimes._native_cache import NativeCache, raise_refusal
from edgedec.runtimes._native_model import NativeModel
from edgedec.runtimes._native_packing import CallPacker
from edgedec.runtimes._native_sampler import NativeSampler, drawn_by, give_drawn
from edgedec.runtimes._native_steps import NativeStep, run_steps
from edgedec.spec import KV_FORMATS
from edgedec.spec.newer import NEWER

__all__ = ["FACTS", "KINDS", "NativeCache", "NativeRuntime", "open", "unavailable_reason"]

KINDS = (
    "altup",
    "attention",
    "channel_mix",
    "conv",
    "delta",
    "gmu",
    "latent",
    "laurel",
    "lookup",
    "mlp",
    "moe",
    "power_law",
    "pre_router",
    "rwkv7",
    "s6",
    "shared_attention",
    "ssm",
)
FACTS = RuntimeFacts(KINDS, low_bits=True, kept=True)
# Below this many bytes of weights per thread, synchronization costs more than another thread saves.
_BYTES_PER_THREAD = 2 << 20
# For more best tokens than this, or a smaller vocabulary, selecting them costs more than copying all logits.
_BEST, _WIDE = 256, 1 << 14


def unavailable_reason(bundle: Bundle, device: DeviceName) -> str | None:
    """None if this runtime can open the bundle here, else the reason in one line."""
    return loader.why_not() or lacking_kinds(bundle, KINDS, encoders=True, facts=NEWER)


def open(bundle: Bundle, options: RuntimeOptions) -> NativeRuntime:  # noqa: A001
    kv = options.kv or bundle.manifest.kv_formats[0]
    if kv not in KV_FORMATS:
        raise UsageError(f"no KV format {kv!r}; there are: {', '.join(KV_FORMATS)}")
    threads = options.threads or min(available_cores(), max(1, len(bundle.weights) // _BYTES_PER_THREAD))
    return NativeRuntime(bundle, kv, threads)


class NativeRuntime:
    """A runtime over a bundle's weights file. `isa`: an instruction set to use instead of the best one."""

    name = "native"

    def __init__(self, bundle: Bundle, kv: str, threads: int, isa: str | None = None) -> None:
        self.spec, self.kv, self.threads = bundle.spec, kv, threads
        self._model, self._isa = NativeModel(bundle), isa or os.environ.get("EDGEDEC_ISA") or None
        self._pool = cpu.CachePool(self._model.struct, kv)
        self._engine = self._start()
        self._pid = os.getpid()
        self._packer = CallPacker(bundle)
        self._all = tuple(range(self.spec.n_blocks))
        self.capabilities = Capabilities(
            kinds=KINDS,
            kv_formats=KV_FORMATS,
            facts=NEWER,
            largest_call=largest_call(self.spec, bundle.manifest.whole_texts),
            batch_invariant=True,
            merge=True,
            drop_by_head=True,
            offload=sys.platform != "win32",
            attach=True,
            views=True,
            queries=True,
            best_k=_BEST if self.spec.vocab_size >= _WIDE else 0,
            temperatures=True,
            entropy=True,
            enters=True,
            page_slots=cpu.page_slots(),
            masks=False,
            threads=threads,
            isa=self._engine.isa,
            sampler=NativeSampler,
            draws=True,
            steps=StepParts(NativeStep, NativeRuntime.step),
            drafting=_native_drafting.PARTS,
        )

        self._largest = self.capabilities.largest_call

    @property
    def isa(self) -> str:
        return self._engine.isa

    @property
    def pages(self) -> int:
        """Pages that all caches of this runtime hold."""
        return self._pool.pages

    def _start(self) -> cpu.Engine:
        try:
            return cpu.Engine(self._model.struct, self.threads, self._isa, self._model)
        except OSError as error:
            raise RuntimeUnavailable(f"engine native: {error}") from None

    def load(self) -> None:
        """Nothing to open: the weights are mapped."""

    def release(self) -> None:
        """Free the working memory."""
        self._engine = self._start()

    def new_cache(self, capacity: int) -> NativeCache:
        if capacity < 1:
            raise UsageError(f"capacity {capacity}: a cache needs room for at least one token")
        return NativeCache(self.spec, self._pool.new_cache(capacity), capacity, self.kv)

    def forward(self, calls: Sequence[Call]) -> list[CallResult]:
        keep: list[Any] = []  # what the packed calls point to
        if len(calls) > 1 and (alike := self._packer.pack_alike(calls, keep)) is not None:
            self._check_size(len(calls))
            if code := self._started().run(alike[0], len(calls)):
                _refuse(code, calls)
            return alike[1]
        drawn, drawn_at = drawn_by(calls)
        packed, results = self._pack(calls, drawn_at, keep)
        code = self._started().run(packed[0] if len(packed) == 1 else b"".join(packed), len(packed))
        if code:
            _refuse(code, calls)
        if drawn is not None:
            give_drawn(calls, results, drawn)
        return results

    def step(self, steps: Sequence[NativeStep], calls: Sequence[Call]) -> Stepped:
        """One forward of several texts' own steps and of other calls (`StepParts.run`)."""
        keep: list[Any] = []
        packed, results, drawn = list[bytes](), list[CallResult](), None
        if calls:
            drawn, drawn_at = drawn_by(calls)
            packed, results = self._pack(calls, drawn_at, keep)
        code, run = run_steps(self._started(), steps, packed)
        if code:
            _refuse(code, calls)
        if drawn is not None:
            give_drawn(calls, results, drawn)
        found = run.struct
        return Stepped(run.tokens[:], found.seconds, found.rows, found.cells, results, found.spent, found.drafts)

    def _pack(self, calls: Sequence[Call], drawn_at: int, keep: list[Any]) -> tuple[list[bytes], list[CallResult]]:
        """Calls as bytes, and their results, which the library fills."""
        logits = self._logits(calls) if len(calls) > 1 else None
        packed, results, rows = list[bytes](), list[CallResult](), 0
        for i, call in enumerate(calls):
            rows += self._counted(call)
            data, result = self._packer.pack(call, logits[i] if logits else None, drawn_at + 4 * i, keep)
            packed.append(data)
            results.append(result)
        self._check_size(rows)
        return packed, results

    def _check_size(self, rows: int) -> None:
        if rows > self._largest:
            raise UsageError(f"{rows} rows in one forward: this runtime takes {self._largest} (largest_call)")

    def _started(self) -> cpu.Engine:
        """The engine of this process."""
        if os.getpid() != self._pid:
            # A forked process inherits the memory but not the threads.
            self._engine, self._pid = self._start(), os.getpid()
        return self._engine

    def _counted(self, call: Call) -> int:
        """The number of rows a call computes; UsageError if it is 0."""
        if call.rows.count < 1:
            raise UsageError(f"rows from {call.rows.first} on of {len(call.rows)}: a call computes at least one row")
        return call.rows.count

    def _logits(self, calls: Sequence[Call]) -> list[NDArray[np.float32] | None] | None:
        """Adjacent arrays for the logits of several calls, so that the head writes them at once; None: make them one by
        one."""
        wanted = [max(0, call.rows.count - call.outputs.logits_from) if call.outputs.logits else 0 for call in calls]
        if sum(n > 0 for n in wanted) < 2:
            return None
        whole, ends = np.empty((sum(wanted), self.spec.vocab_size), np.float32), np.cumsum(wanted).tolist()
        return [whole[end - n : end] if n else None for n, end in zip(wanted, ends, strict=True)]


def _refuse(code: int, calls: Sequence[Call]) -> NoReturn:
    """Raise the error of refused calls; where rows do not fit a cache, with their number."""
    for call in calls if code == codes.FULL else ():
        need = call.cache.length + int(call.rows.row_numbers()[-1]) + 1
        if need > call.cache.capacity:
            raise ContextFull(f"{need} rows do not fit a cache of {call.cache.capacity}")
    raise_refusal(code)
