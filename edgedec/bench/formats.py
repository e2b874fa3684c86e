"""Quality and speed of one model in several formats: bits, perplexity, divergence from the floats, tokens a second.

Each bundle is compared with the bundle of floats on the same texts. Speed is a step of one row, the bundles in turns.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from edgedec.bench.divergence import Divergence, divergence
from edgedec.bench.report import bits_per_weight
from edgedec.bundle.folder import Bundle
from edgedec.runtime import Rows, Runtime, logits_of
from edgedec.text.tokenizer import Tokenizer

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class FormatResult:
    """Of one bundle. bits: stored, a weight, scales included; texts: by name; tokens_per_s: of one text at a time; None
    where it is not measured."""

    name: str
    bits: float
    texts: Mapping[str, Divergence]
    tokens_per_s: float | None

    def to_json(self) -> dict[str, Any]:
        texts = {name: found.to_json() for name, found in self.texts.items()}
        return {"name": self.name, "bits_per_weight": self.bits, "texts": texts, "tokens_per_s": self.tokens_per_s}


def compared(
    bundles: Mapping[str, Bundle],
    runtimes: Mapping[str, Runtime],
    texts: Mapping[str, str],
    tokens: int,
    window: int,
    bits: Mapping[str, float],
    progress: Progress = lambda *_: None,
) -> list[FormatResult]:
    """The bundles by name, the first one of floats; each of the texts' first `tokens` tokens. bits: of those that hold
    as floats what another program keeps in fewer bits; their speed is not measured."""
    names = list(bundles)
    tokenizer = Tokenizer.load(bundles[names[0]].file(str(bundles[names[0]].manifest.text.tokenizer)))
    ids = {name: tokenizer.encode(text)[:tokens] for name, text in texts.items()}
    own, found = [name for name in names if name not in bits], list[FormatResult]()
    speeds = dict(zip(own, step_speeds([runtimes[name] for name in own]), strict=True))
    for i, name in enumerate(names):
        each = {text: divergence(runtimes[name], runtimes[names[0]], read, window) for text, read in ids.items()}
        stored = bits.get(name) or bits_per_weight(bundles[name].manifest.tensors.values())
        found.append(FormatResult(name, stored, each, speeds.get(name)))
        progress(i + 1, len(names))
    return found


def step_speeds(runtimes: Sequence[Runtime], steps: int = 24, clock: Callable[[], float] = perf_counter) -> list[float]:
    """Tokens a second of calls of one row, the runtimes in turns, after two to warm up; by the median."""
    times, caches = [list[float]() for _ in runtimes], [runtime.new_cache(steps + 2) for runtime in runtimes]
    for turn in range(steps + 2):
        for runtime, cache, spent in zip(runtimes, caches, times, strict=True):
            began = clock()
            logits_of(runtime, Rows.chain([turn % runtime.spec.vocab_size], turn), cache)
            spent.append(clock() - began)
            cache.commit(range(1))
    return [round(1 / statistics.median(spent[2:]), 1) for spent in times]
