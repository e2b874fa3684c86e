"""Laws that are linear in a logarithm: acceptance by the tokens a head was trained on, speed by the batch.

After Scaling Laws for Speculative Decoding, of which the abstract was read: acceptance, or speed, is log-linear in the
draft's capacity (`scaling.py`), in its training data, and in the texts that are decoded at a time. What is measured of
each is our own choice:

    tokens a call = a + b log10(tokens trained)        speed over plain decoding = a + b log10(texts at a time)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log10
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from edgedec.bench.batch import Ours, work_of
from edgedec.bench.batch import measure as measure_batch
from edgedec.bench.prompts import Prompt
from edgedec.bench.speculation import Bench, Task
from edgedec.errors import UsageError

if TYPE_CHECKING:
    from edgedec.model import Model

GUESSES = 7


class LawPoint(NamedTuple):
    """A size, and what was measured there."""

    size: int
    value: float


@dataclass(frozen=True)
class LogLaw:
    """value = a + b log10(size); r2: how much of the variance that explains."""

    a: float
    b: float
    r2: float

    def at(self, size: float) -> float:
        return self.a + self.b * log10(size)


def fit_log(points: Sequence[LawPoint], what: str) -> LogLaw:
    """The law of at least three different sizes."""
    if len({point.size for point in points}) < 3 or min(point.size for point in points) < 1:
        raise UsageError(f"bench scaling: {what}: a law needs three different sizes from 1 on, name more")
    x, y = np.log10([point.size for point in points]), np.array([point.value for point in points], float)
    b, a = np.polyfit(x, y, 1)
    spread, rest = float(((y - y.mean()) ** 2).sum()), float(((y - a - b * x) ** 2).sum())
    return LogLaw(float(a), float(b), 1 - rest / spread if spread else 1.0)


def by_data(
    head: str, trained: Mapping[int, str], tasks: Sequence[Task], tokens: int, opened: Callable[[str], Model]
) -> list[LawPoint]:
    """Tokens a call of a head after each number of tokens of training. trained: the bundle of each number."""
    found = []
    for count, path in sorted(trained.items()):
        bench = Bench(opened(path), tasks, tokens, ignore_eos=True)
        spec = f"{head}:fixed={GUESSES}"
        runs = [run for rep in bench.measure([spec], 1).runs[spec] for run in rep]
        found.append(LawPoint(count, sum(run.tokens for run in runs) / max(sum(run.calls for run in runs), 1)))
    return found


def by_batch(
    model: Model, spec: str, sizes: Sequence[int], prompts: Sequence[Prompt], tokens: int, rounds: int = 3
) -> list[LawPoint]:
    """The speed of drafts over plain decoding, by the number of texts that are decoded at a time; in turns."""
    work = work_of(model, prompts, 2 * max(sizes), tokens)
    found = measure_batch({"off": Ours(model, "off"), spec: Ours(model, spec)}, {}, sizes, work, rounds)
    return [
        LawPoint(n, median(a / b for a, b in zip(found.speeds[spec][n], found.speeds["off"][n], strict=True)))
        for n in sizes
    ]
