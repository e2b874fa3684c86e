"""A model with layers left out, for a speed that was asked for: Unified Layer Skipping (S13), lossy.

How many layers are skipped follows from the speed alone; they are spread evenly, the first and the last stay, and all
tokens skip the same ones, so that batches and the KV cache are those of a smaller model. Nothing verifies what such a
model says: it is another text, and a worse one. `skip` drafts in the same way and loses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

from edgedec.cache import Cache
from edgedec.drafters.slices.block_search import Skipped, even
from edgedec.drafters.slices.stack import block_costs
from edgedec.errors import UsageError
from edgedec.runtime import Call, CallResult, Outputs, Rows, Runtime
from edgedec.spec import ModelSpec

_CONTEXT, _ROUNDS, _TRIES = 16, 7, 4
_FASTEST = 16.0


class SkippingRuntime:
    """A runtime whose calls leave `skipped` blocks out. `speed`: over the whole stack, as it was measured."""

    def __init__(self, inner: Runtime, skipped: Skipped, speed: float) -> None:
        if not inner.capabilities.slices:
            raise UsageError(f"skip_speed: the runtime {inner.name} runs only the whole stack; use another engine")
        self.inner, self.skipped, self.speed = inner, skipped, speed
        # Another name, so that what was measured of the whole model is not taken for this one's.
        self.name, self.spec = f"{inner.name}-{len(skipped)}", inner.spec
        self.capabilities = replace(inner.capabilities, slices=False)
        self._kept = [block for block in range(inner.spec.n_blocks) if block not in skipped]

    def forward(self, calls: Sequence[Call]) -> list[CallResult]:
        return self.inner.forward([call._replace(blocks=self._kept) if call.blocks is None else call for call in calls])

    def new_cache(self, capacity: int) -> Cache:
        return self.inner.new_cache(capacity)

    def load(self) -> None:
        self.inner.load()

    def release(self) -> None:
        self.inner.release()

    def about(self) -> str:
        """What people are told of it."""
        layers = len(self.skipped) / self.spec.n_blocks * self.spec.n_layers
        return f"lossy: {layers:g} of {self.spec.n_layers} layers skipped, measured {self.speed:.2f}x"


def skipping(runtime: Runtime, speed: float) -> Runtime:
    """The runtime with as many blocks skipped as make a call of one row `speed` times as fast; itself for 1."""
    if not 1 <= speed <= _FASTEST:
        raise UsageError(f"skip_speed={speed}: must be from 1 (nothing is skipped) to {_FASTEST:g}")
    if speed == 1:
        return runtime
    if not runtime.capabilities.slices:
        return SkippingRuntime(runtime, (), 1.0)
    skipped, measured = _fitting(runtime, speed)
    return SkippingRuntime(runtime, skipped, measured)


def candidates(spec: ModelSpec) -> list[Skipped]:
    """Sets of whole layers, evenly spread, and each with one block of a further layer in the middle."""
    found: list[Skipped] = []
    for many in range(spec.n_layers - 1):
        whole = even(spec, many / spec.n_layers) if many else ()
        found.append(whole)
        kept = [i for i in range(1, spec.n_layers - 1) if spec.span(i, i + 1)[0] not in whole]
        if kept:
            middle = kept[len(kept) // 2]
            found += [tuple(sorted({*whole, block})) for block in spec.span(middle, middle + 1)]
    return found


def _fitting(runtime: Runtime, speed: float) -> tuple[Skipped, float]:
    """The set whose measured speed is nearest to `speed`, and this speed."""
    shares, _ = block_costs(runtime.spec)
    sets = candidates(runtime.spec)
    skips = [sum(shares[block] for block in skipped) for skipped in sets]
    worth, tried = 1.0, dict[int, float]()  # seconds of a share, in plain calls
    for _ in range(_TRIES):
        wanted = (1.0 - 1.0 / speed) / worth
        at = min(range(len(sets)), key=lambda i: abs(skips[i] - wanted))
        if at in tried or not skips[at]:
            break
        tried[at] = measured(runtime, sets[at])
        worth = max((1.0 - 1.0 / tried[at]) / skips[at], 0.05)
    best = min(tried, key=lambda i: abs(tried[i] - speed), default=0)
    if not tried or abs(tried[best] - speed) > 0.25 * (speed - 1) + 0.05:
        most = max(tried.values(), default=1.0)
        raise UsageError(f"skip_speed={speed}: not to be had from this model here; the nearest is {most:.2f}")
    return sets[best], tried[best]


def measured(runtime: Runtime, skipped: Skipped) -> float:
    """How much faster a call of one row is without these blocks: of calls in turns, the medians."""
    kept = [block for block in range(runtime.spec.n_blocks) if block not in skipped]
    cache = runtime.new_cache(_CONTEXT + 1)
    runtime.forward([Call(Rows.chain([0] * _CONTEXT, 0), cache)])
    cache.commit(range(_CONTEXT))
    took: tuple[list[float], list[float]] = [], []
    for _ in range(_ROUNDS):
        for seconds, blocks in zip(took, (None, kept), strict=True):
            began = perf_counter()
            runtime.forward([Call(Rows.chain([0], _CONTEXT), cache, blocks, outputs=Outputs(top=1))])
            seconds.append(perf_counter() - began)
            cache.rollback()
    whole, part = (sorted(seconds)[_ROUNDS // 2] for seconds in took)
    return whole / part
