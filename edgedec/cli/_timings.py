"""`--verbose`: times of each part, on stderr."""

from __future__ import annotations

import sys
from time import perf_counter
from typing import TYPE_CHECKING

from edgedec.runtime import why_chosen

if TYPE_CHECKING:
    import edgedec


class Stopwatch:
    """Prints the milliseconds since the lap before; silent unless `on`."""

    def __init__(self, on: bool) -> None:
        self._on, self._began = on, perf_counter()

    def lap(self, what: str) -> None:
        now = perf_counter()
        if self._on:
            print(f"{1000 * (now - self._began):8.1f} ms  {what}", file=sys.stderr)
        self._began = now

    def generated(self, stats: edgedec.Stats) -> None:
        """The parts of a generation."""
        if not self._on:
            return
        read = stats.prompt - stats.cached
        for seconds, what in (
            (stats.prefill_s, f"prompt of {read} tokens, to the first token"),
            (stats.forward_s, f"forward calls of {max(stats.generated - 1, 0)} more tokens"),
            (stats.decode_s - stats.forward_s, "between the calls: drafting, sampling, verification"),
            (perf_counter() - self._began - stats.prefill_s - stats.decode_s, "all else: printing, measuring costs"),
        ):
            print(f"{1000 * max(seconds, 0.0):8.1f} ms  {what}", file=sys.stderr)


def about(model: edgedec.Model) -> str:
    """The engine that was opened."""
    can = model.runtime.capabilities
    isa = f", {can.isa}" if can.isa else ""
    why = why_chosen(model.runtime)
    return f"{model.runtime.name}{isa}, {can.threads} threads, KV {model.runtime.new_cache(1).kv}" + (
        f"\n{'':13}--device auto: {why}" if why else ""
    )
