"""A model with layers left out, for a requested speed: Unified Layer Skipping, lossy.

The number of skipped layers follows from the speed alone; they are spread evenly, the first and the last stay, and all
tokens skip the same ones, so that batches and the KV cache are those of a smaller model. Its output is not verified: it
is another, worse text. The drafter `skip` drafts in the same way without loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

from edgedec.cache import Cache
from edgedec.drafters._slices.block_search import Skipped, even
from edgedec.drafters._slices.stack import block_costs
from edgedec.errors import UsageError
from edgedec.runtime import Call, CallResult, Outputs, Rows, Runtime
from edgedec.spec import ModelSpec

_CONTEXT, _TRIES = 16, 6
# Timed calls of each variant: until they took this many seconds, at least and at most so many.
_ENOUGH_S, _FEWEST, _MOST = 0.05, 7, 99
_FASTEST = 16.0


class SkippingRuntime:
    """A runtime whose calls leave `skipped` blocks out. `speed`: over the whole stack, as it was measured."""

    def __init__(self, inner: Runtime, skipped: Skipped, speed: float) -> None:
        if not inner.capabilities.slices:
            raise UsageError(f"skip_speed: the runtime {inner.name} runs only the whole stack; use another engine")
        self.inner, self.skipped, self.speed = inner, skipped, speed
        # Another name, so that measurements of the whole model are not used for this one.
        self.name, self.spec = f"{inner.name}-{len(skipped)}", inner.spec
        self.capabilities = replace(inner.capabilities, slices=False, steps=None)
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
        """A description for display."""
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
    """The set whose measured speed is nearest to `speed`, and its speed. Measurements on a busy host may be off, so a
    speed is rejected only if the smallest stack does not reach it either."""
    shares, _ = block_costs(runtime.spec)
    sets = candidates(runtime.spec) or [()]
    skips = [sum(shares[block] for block in skipped) for skipped in sets]
    worth, tried = 1.0, {0: 1.0}  # seconds of a share, in plain calls; speeds
    for _ in range(_TRIES):
        wanted = (1.0 - 1.0 / speed) / worth
        at = min(range(len(sets)), key=lambda i: abs(skips[i] - wanted))
        if at in tried:
            break
        tried[at] = measured(runtime, sets[at])
        worth = max((1.0 - 1.0 / tried[at]) / skips[at], 0.05)
    slowest, smallest = speed - 0.25 * (speed - 1) - 0.05, max(range(len(sets)), key=lambda i: skips[i])
    if max(tried.values()) < slowest:
        tried[smallest] = measured(runtime, sets[smallest]) if skips[smallest] else 1.0
        if tried[smallest] < slowest:
            most = max(tried.values())
            raise UsageError(f"skip_speed={speed}: not to be had from this model here; the most is {most:.2f}")
    best = min(tried, key=lambda i: abs(tried[i] - speed))
    return sets[best], tried[best]


def measured(runtime: Runtime, skipped: Skipped) -> float:
    """The speedup of a call of one row without these blocks: alternating calls, the lower quartile of each variant,
    which delays by other programs do not change."""
    kept = [block for block in range(runtime.spec.n_blocks) if block not in skipped]
    cache = runtime.new_cache(_CONTEXT + 1)
    runtime.forward([Call(Rows.chain([0] * _CONTEXT, 0), cache)])
    cache.commit(range(_CONTEXT))
    took: tuple[list[float], list[float]] = [], []
    while len(took[0]) < _FEWEST or (len(took[0]) < _MOST and sum(took[0]) < _ENOUGH_S):
        for seconds, blocks in zip(took, (None, kept), strict=True):
            began = perf_counter()
            runtime.forward([Call(Rows.chain([0], _CONTEXT), cache, blocks, outputs=Outputs(top=1))])
            seconds.append(perf_counter() - began)
            cache.rollback()
    whole, part = (sorted(seconds)[len(seconds) // 4] for seconds in took)
    return whole / part
