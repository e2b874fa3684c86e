"""Measures an engine's calls on this bundle, and the handover of a text, with a short text."""

from __future__ import annotations

from time import perf_counter

from edgedec.cache import Cache
from edgedec.runtime import Call, Outputs, Rows, Runtime
from edgedec.runtimes.paired.costs import EngineCosts
from edgedec.runtimes.paired.layout import Handover

_ROWS = (1, 8, 32)
# Tokens before the measured rows; repetitions of a call; a call of this many seconds is not repeated.
_BEFORE, _TIMES, _LONG = 32, 3, 1.0


def measured(runtime: Runtime, cpu: Runtime) -> EngineCosts:
    """The costs of an engine, with handovers to and from the CPU engine."""
    can, most = runtime.capabilities, runtime.spec.context_length
    chunk = max(1, min(can.prefill_chunk, can.largest_call, most // 2))
    before = min(_BEFORE, most - chunk)
    cache = runtime.new_cache(before + chunk)
    rows = tuple(sorted({n for n in _ROWS if n < chunk} | {chunk}))
    runtime.forward([Call(_text(runtime, before, 0), cache)])
    cache.commit(range(before))
    seconds = tuple(_best_of(runtime, cache, n) for n in rows)
    fixed, each = (0.0, 0.0) if runtime is cpu else _handed_over(runtime, cpu, cache, chunk)
    return EngineCosts(rows, seconds, fixed, each)


def _text(runtime: Runtime, n: int, first: int) -> Rows:
    return Rows.chain([7 * i % runtime.spec.vocab_size for i in range(first, first + n)], first)


def _best_of(runtime: Runtime, cache: Cache, n: int) -> float:
    """The least seconds of a call of n rows; the rows are rolled back."""
    call = Call(_text(runtime, n, cache.length), cache, outputs=Outputs(top=1, logits_from=n - 1))
    best = _timed(runtime, call)  # the first one may compile, and grow memory
    for _ in range(_TIMES):
        last = _timed(runtime, call)
        best = min(best, last)
        if last > _LONG:
            break
    return best


def _timed(runtime: Runtime, call: Call) -> float:
    began = perf_counter()
    runtime.forward([call])
    seconds = perf_counter() - began
    call.cache.rollback()
    return seconds


def _handed_over(runtime: Runtime, cpu: Runtime, cache: Cache, n: int) -> tuple[float, float]:
    """Seconds of a handover, fixed and per token; the slower direction counts."""
    runtime.forward([Call(_text(runtime, n, cache.length), cache)])
    cache.commit(range(n))
    little, tokens = cache.fork(min(1, cache.length)), cache.length
    caches = cpu.new_cache(cache.capacity), runtime.new_cache(cache.capacity)
    out, back = Handover.between(runtime, cpu), Handover.between(cpu, runtime)
    assert out is not None
    assert back is not None
    fixed = max(_moved(out, little, caches[0]), _moved(back, caches[0], caches[1]))
    whole = max(_moved(out, cache, caches[0]), _moved(back, caches[0], caches[1]))
    return fixed, max(whole - fixed, 0.0) / tokens


def _moved(way: Handover, source: Cache, target: Cache) -> float:
    best = float("inf")
    for _ in range(2):
        began = perf_counter()
        way.move(source, target)
        best = min(best, perf_counter() - began)
    return best
