"""The cost of a GPU engine's steps: seconds by rows and context, launches, and shares of the GPU's limits.

Time is the GPU's own if the device supports it (events around a step's launches, run again), else wall time. A step of
n rows is n texts of one row each, or one text of n rows, as verification has them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from edgedec.cache import Cache
from edgedec.runtime import Call, Outputs, Rows, Runtime
from edgedec.spec import OUTER, ModelSpec

# By the words that a GPU's name begins with: bytes a second of its memory (0: as its driver says), int8 operations a
# second of its tensor cores, dense.
KNOWN = {
    "NVIDIA H200": (4.8e12, 1979e12),
    "NVIDIA H100 NVL": (3.9e12, 1671e12),
    "NVIDIA H100 PCIe": (2.0e12, 1513e12),
    "NVIDIA H100": (3.35e12, 1979e12),
    "NVIDIA A100-SXM4-40GB": (1.555e12, 624e12),
    "NVIDIA A100-PCIE-40GB": (1.555e12, 624e12),
    "NVIDIA A100-SXM4-80GB": (2.039e12, 624e12),
    "NVIDIA A100 80GB PCIe": (1.935e12, 624e12),
    "NVIDIA A100": (0.0, 624e12),
    "NVIDIA L4": (0.3e12, 242e12),
    "Tesla T4": (0.32e12, 130e12),
}
_GREEDY = Outputs(top=1)


@dataclass(frozen=True)
class StepCost:
    """A step: what it was, seconds of the GPU and of the clock (medians), launches."""

    what: str
    rows: int
    context: int
    seconds: float
    clock: float
    launches: int
    bandwidth: float = 0.0  # bytes that had to be read, a second
    share: float = 0.0  # of the memory's rate; of prefill: of the tensor cores' rate


@dataclass
class DeviceCosts:
    """All steps that were measured on a device."""

    device: str
    memory_rate: float
    tensor_rate: float
    weight_bytes: int
    steps: list[StepCost] = field(default_factory=list)
    used: list[str] = field(default_factory=list)  # what kernels used of the device, in lines

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def rates(device: str, memory: float = 0.0) -> tuple[float, float]:
    """Bytes a second of memory and int8 operations a second; zeros where they are not known. memory: the driver's
    figure, 0 if it has none.

    >>> rates("NVIDIA L4"), rates("NVIDIA L40S", 8.64e11)
    ((300000000000.0, 242000000000000.0), (864000000000.0, 0.0))
    """
    begins = (found for name, found in KNOWN.items() if device == name or device.startswith((f"{name} ", f"{name}-")))
    known, tensor = next(begins, (0.0, 0.0))
    return known or memory, tensor


def measure(
    runtime: Runtime,
    weight_bytes: int,
    rows: Sequence[int] = (1, 2, 4, 8, 16, 32, 64),
    context: int = 256,
    prefill: int = 4096,
    repetitions: int = 20,
    progress: Callable[[StepCost], None] = lambda step: None,
) -> DeviceCosts:
    """Steps of each number of rows after `context` tokens, as many texts and as one; then the prefill of a text.
    weight_bytes: what one row has to read."""
    memory, tensor = rates(runtime.capabilities.device, getattr(runtime, "memory_rate", 0.0))
    found = DeviceCosts(runtime.capabilities.device, memory, tensor, weight_bytes)
    meter = _Meter(runtime, repetitions)
    most = runtime.spec.context_length
    context = min(context, most - max(rows))
    for n in rows:
        for what in ("texts", "one text"):
            if n > 1 or what == "texts":
                found.steps.append(meter.decode(what, n, context, weight_bytes, memory))
                progress(found.steps[-1])
    found.steps.append(meter.prefill(min(prefill, most), tensor))
    progress(found.steps[-1])
    found.used = getattr(getattr(runtime, "device", None), "summary", list)()
    return found


class _Meter:
    def __init__(self, runtime: Runtime, repetitions: int) -> None:
        self._runtime, self._repetitions = runtime, repetitions
        self._timed: Callable[[Callable[[], None]], float] | None = getattr(
            getattr(runtime, "device", None), "timed", None
        )
        self._again: Callable[[], None] | None = getattr(runtime, "again", None)

    def decode(self, what: str, n: int, context: int, weight_bytes: int, rate: float) -> StepCost:
        """A step of n rows, each after `context` tokens."""
        spec, texts = self._runtime.spec, n if what == "texts" else 1
        caches = [self._read(context, n + 1) for _ in range(texts)]
        each = n // texts
        rows = Rows.chain(np.arange(each) % spec.vocab_size, context)
        seconds, clock = self._median([Call(rows, cache, outputs=_GREEDY) for cache in caches])
        read = weight_bytes + texts * context * kv_bytes(spec, getattr(self._runtime, "kv", "int8"))
        share = read / seconds / rate if rate else 0.0
        return StepCost(what, n, context, seconds, clock, self._launches(), read / seconds, share)

    def prefill(self, tokens: int, rate: float) -> StepCost:
        """A text read in the largest calls."""
        spec, most = self._runtime.spec, self._runtime.capabilities.largest_call
        gpu = clock = 0.0
        cache = self._runtime.new_cache(tokens)
        for _ in range(2):  # the first records the launches
            cache.truncate(0)
            gpu = clock = 0.0
            for at in range(0, tokens, most):
                n = min(most, tokens - at)
                call = Call(Rows.chain(np.arange(n) % spec.vocab_size, at), cache)
                seconds, wall = self._once([call])
                cache.commit(range(n))
                gpu, clock = gpu + seconds, clock + wall
        operations = 2 * multiplies(spec) * tokens
        return StepCost(
            "prefill", tokens, 0, gpu, clock, self._launches(), 0.0, operations / gpu / rate if rate else 0.0
        )

    def _read(self, context: int, room: int) -> Cache:
        """A cache of `context` tokens."""
        cache, most = self._runtime.new_cache(context + room), self._runtime.capabilities.largest_call
        for at in range(0, context, most):
            n = min(most, context - at)
            self._runtime.forward([Call(Rows.chain(np.arange(n) % self._runtime.spec.vocab_size, at), cache)])
            cache.commit(range(n))
        return cache

    def _median(self, calls: Sequence[Call]) -> tuple[float, float]:
        self._once(calls)  # records the launches
        found = [self._once(calls) for _ in range(self._repetitions)]
        return statistics.median(s for s, _ in found), statistics.median(c for _, c in found)

    def _once(self, calls: Sequence[Call]) -> tuple[float, float]:
        """Seconds of the device and of the clock."""
        start = time.perf_counter()
        self._runtime.forward(calls)
        clock = time.perf_counter() - start
        if not self._timed or not self._again:
            return clock, clock
        return self._timed(self._again), clock

    def _launches(self) -> int:
        return int(getattr(self._runtime, "launches", 0))


def multiplies(spec: ModelSpec) -> int:
    """Multiply-adds of a row in the blocks' matrices."""
    shapes = spec.tensors()
    return sum(shapes[name][0] * shapes[name][1] for name in spec.matrices if name not in OUTER)


def kv_bytes(spec: ModelSpec, kv: str) -> int:
    """Bytes of keys and values of a token, without their scales."""
    bits = {"f32": 32, "f16": 16, "int8": 8, "int4": 4}[kv]
    return sum(block.kv_parts * block.kv_dim * bits // 8 for block in spec.attention.values())
