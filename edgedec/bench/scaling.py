"""The scaling law of drafters (Scaling Laws for Speculative Decoding), fitted to the available ones.

Acceptance grows with the logarithm of a drafter's size; what a step costs grows with the size itself. So there is a
best size, and for each size a best length:

    acceptance = a + b log10(parameters)        step / call = c + d parameters
    tokens a call with length n and acceptance p: 1 + p + … + p^n
    speed = tokens a call / (n step / call + cost(n + 1) / cost(1))
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log10, prod
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from edgedec.bench.scaling_laws import LawPoint, fit_log
from edgedec.bench.speculation import Bench, Task
from edgedec.drafters import DrafterContext
from edgedec.drafters._models.opening import open_draft
from edgedec.errors import UsageError
from edgedec.plugins.words import quoted
from edgedec.runtime import Call, Outputs, Rows, Runtime, forward_one
from edgedec.spec import ModelSpec

if TYPE_CHECKING:
    from edgedec.model import Model

LONGEST = 12
_CONTEXT, _TIMES, _LENGTH = 64, 9, 4


@dataclass(frozen=True)
class Point:
    """A drafter: the weights of one of its steps, the acceptance rate of its tokens, and the cost of a step as a part
    of a call of the target."""

    name: str
    parameters: int
    acceptance: float
    step: float


@dataclass(frozen=True)
class Law:
    """acceptance = a + b log10(parameters), and how much of the variance that explains; step = c + d parameters."""

    a: float
    b: float
    r2: float
    c: float
    d: float

    def acceptance(self, parameters: float) -> float:
        return min(max(self.a + self.b * log10(parameters), 0.0), 0.99)

    def step(self, parameters: float) -> float:
        return max(self.c + self.d * parameters, 1e-4)


@dataclass(frozen=True)
class BestSize:
    """A size, the best length for it, and the speed over plain decoding that the law predicts."""

    parameters: int
    length: int
    speed: float


def fit(points: Sequence[Point]) -> Law:
    """The law of at least three drafters of different sizes."""
    if len({point.parameters for point in points}) < 3:
        raise UsageError(f"bench scaling: {len(points)} drafters; a law needs three of different sizes, name more")
    accepted = fit_log([LawPoint(point.parameters, point.acceptance) for point in points], "drafters")
    d, c = np.polyfit([float(point.parameters) for point in points], [point.step for point in points], 1)
    return Law(accepted.a, accepted.b, accepted.r2, float(c), float(d))


def best_length(p: float, step: float, cost: Callable[[int], float]) -> tuple[int, float]:
    """The length with the highest speed over plain decoding, and that speed; (0, 1.0) if no length pays.

    >>> best_length(0.8, 0.1, lambda rows: 1.0)
    (6, 2.469...)
    """
    best, speed, tokens = 0, 1.0, 1.0
    for n in range(1, LONGEST + 1):
        tokens += p**n
        if (rate := tokens / (n * step + cost(n + 1))) > speed:
            best, speed = n, rate
    return best, speed


def best_size(law: Law, sizes: tuple[float, float], cost: Callable[[int], float]) -> BestSize:
    """The best size between two, and its length."""
    choices = []
    for size in np.geomspace(*sizes, 60):
        length, speed = best_length(law.acceptance(size), law.step(size), cost)
        choices.append(BestSize(round(float(size)), length, speed))
    return max(choices, key=lambda choice: choice.speed)


def row_costs(runtime: Runtime) -> Callable[[int], float]:
    """The cost of a call by rows, in calls of one row."""
    counts = [1, 2, 4, 8, LONGEST + 1]
    seconds = [call_seconds(runtime, rows=rows) for rows in counts]
    return lambda rows: max(float(np.interp(rows, counts, seconds)) / seconds[0], 1.0)


def call_seconds(runtime: Runtime, layers: int = 0, rows: int = 1) -> float:
    """The median seconds of a call of the first `layers` layers (0: all) and the head, after a short text."""
    cache = runtime.new_cache(_CONTEXT + rows)
    forward_one(runtime, Call(Rows.chain([1] * _CONTEXT, 0), cache))
    cache.commit(range(_CONTEXT))
    blocks = range(sum(map(len, runtime.spec.layers[:layers]))) if layers else None
    call = Call(Rows.chain([1] * rows, _CONTEXT), cache, blocks, outputs=Outputs(top=1))
    times = []
    for _ in range(_TIMES):
        began = perf_counter()
        forward_one(runtime, call)
        times.append(perf_counter() - began)
    return statistics.median(times)


def parameters(spec: ModelSpec, layers: int = 0) -> int:
    """The weights of the first `layers` layers (0: all): what a step goes through, but for the head."""
    blocks = sum(map(len, spec.layers[:layers])) if layers else spec.n_blocks
    names = {name: shape for name, shape in spec.tensors().items() if name.startswith("blocks.")}
    return sum(prod(shape) for name, shape in names.items() if int(name.split(".")[1]) < blocks)


def measure(
    model: Model,
    drafts: Sequence[str],
    exits: Sequence[int],
    tasks: Sequence[Task],
    tokens: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Point]:
    """The drafters: bundles of small models, and the model left early after so many layers."""
    specs = {f"model:path={quoted(path)},length={_LENGTH},fixed={_LENGTH}": path for path in drafts}
    early = {f"exit:layer={n},length={_LENGTH},threshold=0,stop=0,fixed={_LENGTH}": n for n in exits}
    runs = Bench(model, tasks, tokens, ignore_eos=True).measure([*specs, *early], 1, progress=progress).runs
    whole = call_seconds(model.runtime)
    host = DrafterContext(model.runtime, model.bundle, lambda: model.tokenizer)
    found: list[Point] = []
    for name in [*specs, *early]:
        if name in specs:
            runtime = open_draft(host, specs[name], model.runtime.capabilities.threads)[0]
            size, seconds, label = parameters(runtime.spec), call_seconds(runtime), specs[name]
        else:
            size, seconds = parameters(model.spec, early[name]), call_seconds(model.runtime, early[name])
            label = f"exit:layer={early[name]}"
        reached = sum(run.accepted_at[1] for rep in runs[name] for run in rep)
        tried = sum(run.drafted_at[1] for rep in runs[name] for run in rep)
        found.append(Point(label, size, reached / max(tried, 1), seconds / whole))
    return found
