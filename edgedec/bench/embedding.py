"""Texts through encoders, side by side in one process: each shape is measured in turns, so that what else the machine
does meets all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter, sleep

import numpy as np

from edgedec.bundle import Bundle
from edgedec.encoding.runner import TextRunner
from edgedec.encoding.texts import EncodedText
from edgedec.runtime import RuntimeOptions, choose_runtime, open_runtime

_REST = 0.1  # seconds
Texts = list[list[int]]
Run = Callable[[Texts], object]


@dataclass(frozen=True)
class EmbedShape:
    """`texts` texts of `tokens` tokens each; mixed: from a quarter of them to all."""

    texts: int
    tokens: int
    mixed: bool = False

    def draw(self, vocabulary: int, seed: int = 0) -> Texts:
        """Random tokens."""
        rng = np.random.default_rng(seed)
        least = max(1, self.tokens // 4) if self.mixed else self.tokens
        lengths = rng.integers(least, self.tokens + 1, self.texts)
        return [rng.integers(0, vocabulary, int(n)).tolist() for n in lengths]


@dataclass(frozen=True)
class Timed:
    """Of one engine at a shape. ratio: the median of its time over that of the first engine in the same turn."""

    engine: str
    shape: EmbedShape
    seconds: float
    tokens: int
    ratio: float

    @property
    def speed(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


def of_bundle(bundle: Bundle, engine: str, threads: int) -> tuple[str, Run]:
    """(name, run) of a bundle's engine."""
    name = choose_runtime(bundle, engine)
    runner = TextRunner(bundle, open_runtime(name, bundle, RuntimeOptions(threads=threads)))
    return name, lambda texts: list(runner.hidden([EncodedText(ids, [0] * len(ids)) for ids in texts]))


def measure(
    engines: Sequence[tuple[str, Run]],
    shapes: Sequence[EmbedShape],
    vocabulary: int,
    repetitions: int,
    show: Callable[[int, int], None] = lambda done, total: None,
    clock: Callable[[], float] = perf_counter,
    rest: Callable[[float], None] = sleep,
) -> list[Timed]:
    """Every engine at every shape, in turns; the first turn of a shape is not counted. Before each the machine rests,
    because threads of the engine before still wait for work by then, each on a core."""
    found, total = list[Timed](), len(shapes) * (repetitions + 1)
    for i, shape in enumerate(shapes):
        texts, times = shape.draw(vocabulary), [list[float]() for _ in engines]
        for turn in range(repetitions + 1):
            show(i * (repetitions + 1) + turn, total)
            for (_, run), spent in zip(engines, times, strict=True):
                rest(_REST)
                began = clock()
                run(texts)
                spent.append(clock() - began)
        counted, tokens = [spent[1:] for spent in times], sum(map(len, texts))
        for (name, _), spent in zip(engines, counted, strict=True):
            ratio = median(own / first for own, first in zip(spent, counted[0], strict=True))
            found.append(Timed(name, shape, median(spent), tokens, ratio))
    return found
